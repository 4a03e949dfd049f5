"""Help of verbs that ends in a list: which names there are is looked up only when someone asks."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class ConfigCommand(TyperCommand):
    """`longshort config`: the names that --preset takes; without a name it is answered with them too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*args, ""] if args[-1:] == ["--preset"] else args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from longshort.train.shipped import shipped_names

        formatter.write_paragraph()
        formatter.write_text(f"Names for --preset: {', '.join(shipped_names())}")


class CompareCommand(TyperCommand):
    """`longshort compare`: every variant with what it is."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from longshort.train.variants import VARIANTS, described

        with formatter.section("Variants"):
            formatter.write_dl([(name, described(name)) for name in VARIANTS])
