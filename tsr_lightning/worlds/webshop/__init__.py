"""WebShop: pages, search and reward of the shop, published or generated catalogues, and the environment."""
