"""Names that earlier versions used, for the error message that refuses them. No old name is accepted anywhere."""

from collections.abc import Mapping

# A dotted key, an argument as Class.argument, a class, a module or a shipped file -> its name today.
RENAMED: Mapping[str, str] = {
    "data.trials": "data.evaluations",
    "data.max_rows": "data.engine.init_args.max_num_seqs",
    "data.cache_mib": "data.engine.init_args.kv_cache_mib",
    "data.updates.micro_tokens": "data.updates.micro_batch_tokens",
    "data.updates.stop_kl": "data.updates.target_kl",
    "data.env_kwargs.wording": "data.env_kwargs.prompt_style",
    "data.env_kwargs.asked": "data.env_kwargs.goals",
    "data.env_kwargs.part": "data.env_kwargs.split",
    "model.policy.model.layers": "model.policy.model.num_hidden_layers",
    "model.policy.model.heads": "model.policy.model.num_attention_heads",
    "model.policy.model.intermediate": "model.policy.model.intermediate_size",
    "model.policy.model.max_positions": "model.policy.model.max_position_embeddings",
    "PPO.lam": "PPO.advantage.gae_lambda",
    **{f"{name}.clip_low": f"{name}.surrogate.low" for name in ("PPO", "GRPO")},
    **{f"{name}.clip_high": f"{name}.surrogate.high" for name in ("PPO", "GRPO", "RAFT")},
    **{
        f"{name}.kl_coefficient": f"{name}.kl, a class such as K3 with its coefficient"
        for name in ("PPO", "GRPO", "RAFT")
    },
    "GRPO.normalise_std": "GRPO.advantage.divide_by_std",
    "PPO.gae": "PPO.advantage",
    "PPO.gamma": "PPO.advantage.gamma",
    "PPO.gae_lambda": "PPO.advantage.gae_lambda",
    "PPO.bootstrap_truncated": "PPO.advantage.bootstrap_truncated",
    "PPO.value_clip": "PPO.critic.clip",
    "PPO.value_coefficient": "PPO.critic.coefficient",
    "tsr_lightning.objectives.likelihood.Likelihood": "tsr_lightning.objectives.sft.SFT",
    "Likelihood": "SFT",
    "AsSampled": "Unchanged",
    "SuccessesOnly": "ImitateSuccesses",
    "objective/likelihood.yaml": "objective/sft.yaml",
    # modules that a user's own environment, strategy, objective or callback may import
    "tsr_lightning.agent": "tsr_lightning.training.agent",
    "tsr_lightning.draws": "tsr_lightning.rng",
    "tsr_lightning.envs.branchable": "tsr_lightning.envs.base",
    "tsr_lightning.envs.making": "tsr_lightning.envs.make",
    "tsr_lightning.evaluation": "tsr_lightning.training.evaluation",
    "tsr_lightning.generation": "tsr_lightning.engines",
    "tsr_lightning.hooks": "tsr_lightning.training.hooks",
    "tsr_lightning.rollouts": "tsr_lightning.training.datamodule",
    "tsr_lightning.rows": "tsr_lightning.batching.sequences",
    "tsr_lightning.search.ledger": "tsr_lightning.costs",
    "tsr_lightning.search.moves": "tsr_lightning.search.simulator",
    "tsr_lightning.search.stages": "tsr_lightning.search.executors",
    "tsr_lightning.trainer": "tsr_lightning.training.trainer",
    "tsr_lightning.training.logging": "tsr_lightning.training.lightning_compat",
}


def renamed(name: str) -> str | None:
    """The sentence that answers an old name, with or without a flag's dashes, or a key below it; None for any other."""
    bare = name.removeprefix("--")
    dashes = name.removesuffix(bare)
    for old, new in RENAMED.items():
        if bare == old or bare.startswith(f"{old}."):
            return f"{dashes}{old} is now {dashes}{new}: rename it"
    return None
