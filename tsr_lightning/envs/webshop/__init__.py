"""WebShop: a shop with its pages, search and reward, published or made catalogues, and the environment itself."""
