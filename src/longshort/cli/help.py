"""Help texts that end in a list of names, which is looked up only when the help is shown."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class ConfigCommand(TyperCommand):
    """`longshort config`: lists the names that --preset takes, also if --preset is given without one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*args, ""] if args[-1:] == ["--preset"] else args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from longshort.train.settings.shipped import shipped_names

        formatter.write_paragraph()
        formatter.write_text(f"Names for --preset: {', '.join(shipped_names())}")


class CompareCommand(TyperCommand):
    """`longshort compare`: lists every variant with its description."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from longshort.train.sweeps.variants import VARIANTS, described

        with formatter.section("Variants"):
            formatter.write_dl([(name, described(name)) for name in VARIANTS])
