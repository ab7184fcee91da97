"""A harness of verifiers that asks the model in this process: theirs start a program that `uv` installs first."""

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["DirectHarness", "DirectHarnessConfig"]


class DirectHarnessConfig(vf.HarnessConfig):
    pass


class DirectHarness(vf.Harness[DirectHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        said = [{"role": "system", "content": system}] if system else []
        said += [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=30) as client:
            answer = await client.post(f"{endpoint}/chat/completions", json={"model": ctx.model, "messages": said})
        return vf.ProgramResult(exit_code=0 if answer.is_success else 1, stdout=answer.text, stderr="")
