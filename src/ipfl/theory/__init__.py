"""The paper's theory, to be read beside its sections: formulas, simulations of them, and figures.

| paper | here |
|---|---|
| section 3, "Theoretical foundation": three ways to estimate a mean, and their errors | `gaussian_means` |
| the same by simulation | `monte_carlo` |
| errors, and the condition τ² < m₁σ²/(2n₀), as figures | `error_studies` |
| remarks R1, R2, R3 | `remark_studies` |
| Proposition 1 and its proof: clients choose clusters, clusters move | `clustering` |
| Theorems 3, 4 and 6 and their proofs: diminishing steps on a convex loss | `convergence` |

Every study is one entry of `STUDIES` (`studies.py`): numbers first, then a figure that is drawn from them.
The paper's formulas for the errors leave out a covariance. Both stand here: `printed`, and `exact`, which
follows from the model that the paper describes (`gaussian_means` derives it).

Imports only `core` and `errors`; imported by `cli`.
"""
