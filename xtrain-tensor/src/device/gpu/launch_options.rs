//! How kernels are launched. The options help to find a faulty kernel; they change no bit of any result.
use std::env;

use crate::error::{Error, Result};

/// The products that use the `wgmma` kernels, where TMA can read their operands. The choice changes no bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum WgmmaUse {
    #[default]
    Never,
    /// Those whose kernel computes tiles of 64 rows or more.
    TiledProducts,
    /// All of them: for tests.
    #[cfg(all(test, xtrain_emu))]
    EveryProduct,
}

/// Launch options of a GPU, from the environment when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaunchOptions {
    /// `XTRAIN_CUDA_SYNC`: waits for each kernel. Its error then names the kernel, and belongs to the operation that
    /// launched it. Without graphs.
    pub(crate) sync: bool,
    /// `XTRAIN_CUDA_GRAPHS`: launches repeated sequences of kernels as CUDA graphs.
    pub(crate) graphs: bool,
    /// `XTRAIN_CUDA_DEPENDENT_LAUNCH`: the blocks of a kernel of a graph may start before the previous kernel has
    /// finished (programmatic dependent launch), where the kernels were compiled for sm_90 or later. Without effect on
    /// kernels that are not launched as graphs.
    pub(crate) dependent: bool,
    /// `XTRAIN_CUDA_WGMMA`: products that may use `wgmma`, once it has been compared with `mma.sync` on the device.
    pub(crate) wgmma: WgmmaUse,
}

impl Default for LaunchOptions {
    fn default() -> LaunchOptions {
        LaunchOptions { sync: false, graphs: true, dependent: true, wgmma: WgmmaUse::TiledProducts }
    }
}

impl LaunchOptions {
    /// The options of the environment.
    ///
    /// # Errors
    /// [`Error::Device`] if a variable is neither 0 nor 1.
    pub(crate) fn from_env() -> Result<LaunchOptions> {
        LaunchOptions::read(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<LaunchOptions> {
        let flag = |name, default| match variable(name).as_deref() {
            None | Some("") => Ok(default),
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(Error::device(format!("{name}: expected 0 or 1, found {other:?}"))),
        };
        let LaunchOptions { sync, graphs, dependent, wgmma } = LaunchOptions::default();
        Ok(LaunchOptions {
            sync: flag("XTRAIN_CUDA_SYNC", sync)?,
            graphs: flag("XTRAIN_CUDA_GRAPHS", graphs)?,
            dependent: flag("XTRAIN_CUDA_DEPENDENT_LAUNCH", dependent)?,
            wgmma: if flag("XTRAIN_CUDA_WGMMA", true)? { wgmma } else { WgmmaUse::Never },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{LaunchOptions, WgmmaUse};

    #[test]
    fn a_variable_is_0_or_1() {
        let read = |name: &str, value: &str| {
            LaunchOptions::read(|asked| (asked == name).then(|| value.to_string())).map_err(|e| e.to_string())
        };
        let default = LaunchOptions::default();
        assert_eq!(read("", ""), Ok(default));
        assert_eq!(read("XTRAIN_CUDA_SYNC", "1"), Ok(LaunchOptions { sync: true, ..default }));
        assert_eq!(read("XTRAIN_CUDA_SYNC", "0"), Ok(default));
        assert_eq!(read("XTRAIN_CUDA_GRAPHS", "0"), Ok(LaunchOptions { graphs: false, ..default }));
        let in_turn = LaunchOptions { dependent: false, ..default };
        assert_eq!(read("XTRAIN_CUDA_DEPENDENT_LAUNCH", "0"), Ok(in_turn));
        let without = LaunchOptions { wgmma: WgmmaUse::Never, ..default };
        assert_eq!(read("XTRAIN_CUDA_WGMMA", "0"), Ok(without));
        assert_eq!(read("XTRAIN_CUDA_WGMMA", "1"), Ok(default));
        assert_eq!(
            read("XTRAIN_CUDA_GRAPHS", "off"),
            Err("XTRAIN_CUDA_GRAPHS: expected 0 or 1, found \"off\"".to_string())
        );
    }
}
