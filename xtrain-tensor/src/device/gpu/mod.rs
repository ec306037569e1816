//! GPU runtime: device memory, counters and kernel submission. The same Rust code serves a CUDA device and the
//! emulator; they differ only behind [`Launcher`](launch::Launcher).
mod buffer;
mod counters;
mod cuda;
#[cfg(all(feature = "emu", xtrain_emu))]
mod emulated;
mod handle;
mod indices;
mod launch;
mod launch_options;
mod memory;
mod open;
mod peak;
mod peers;
mod queue;
mod recorder;
mod stream;
mod survey;
mod tensor_core_operands;
mod tensor_maps;
mod wgmma;
mod wgmma_attention;
mod wgmma_probe;
mod wgmma_products;

pub(crate) use buffer::{Buffer, Deferred, Zeros};
pub use cuda::GpuInfo;
#[cfg(all(test, feature = "emu", xtrain_emu))]
pub(crate) use emulated::testing::{kernel_names, watch, watched};
pub use handle::Gpu;
pub use launch::ThreadSchedule;
pub(crate) use launch::{Arg, At, Emulation, EmulatorBuild, Grid, MatrixBoxes, args};
#[cfg(all(test, xtrain_emu))]
pub(crate) use launch_options::LaunchOptions;
pub(crate) use launch_options::WgmmaUse;
pub use peak::Peak;
pub(crate) use peers::{Member, Message, Peers, agreed, check as check_members};
pub(crate) use recorder::{RecordedLaunch, RecordedOperand, Recording, take};
pub use stream::GpuCounters;
pub use survey::{GpuSurvey, enumerate_gpus};
#[cfg(all(test, xtrain_emu))]
pub(crate) use tensor_core_operands::{KINDS, Operands, SIDE};
