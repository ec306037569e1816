//! Weight gradients. Several share a launch, because the tiles of a single one leave multiprocessors idle.
//!
//! A gradient is deferred (`device/gpu/buffer.rs`) and joins the open group of its device. The group is queued as one
//! kernel when its tiles occupy the multiprocessors, when it has [`MAX_PRODUCTS`], or when one of its gradients is read
//! or added to. Until then it keeps `dy` and `x` in memory.
use std::any::Any;
use std::sync::{Arc, Mutex, Weak};

use super::wgmma::SampleMaps;
use super::{Tile, TileKernels, bounds, occupied, tile_kernels};
use crate::device::gpu::{Arg, At, Buffer, Deferred, Gpu, Grid, args};
use crate::faults::{self, Fault};
use crate::lock::lock;
use crate::operands::Samples;
use crate::{Dtype, Result, Tensor};

/// Maximum number of weight gradients in a launch: those of a layer and the MLP of the next. A bound on the memory of
/// their operands.
const MAX_PRODUCTS: usize = 10;

/// The share of busy SMs from which a group does not wait for another gradient.
const OCCUPIED: f64 = 0.95;

const WEIGHT_GRADIENT: TileKernels = tile_kernels!("linear_dw", [false, false]);

/// Device operands of a weight gradient: `dw = dw + rowsum dy x` with `dy [rows, outs]`, `x [rows, width]` and
/// `dw [outs, width]`.
#[derive(Debug, Clone, Copy)]
pub(in crate::gpu) struct RowProduct {
    pub(in crate::gpu) dw: At,
    /// Whether `dw` holds an earlier sum. Otherwise the sum starts from zero and `dw` is only written.
    pub(in crate::gpu) accumulate: bool,
    pub(in crate::gpu) dy: At,
    pub(in crate::gpu) x: At,
    /// `[outs, width]`.
    pub(in crate::gpu) shape: [usize; 2],
}

impl RowProduct {
    /// Addresses and numbers of columns of `dy` and of `x`.
    fn matrices(&self) -> [(At, usize); 2] {
        [(self.dy, self.shape[0]), (self.x, self.shape[1])]
    }
}

/// The tile of a launch with these products.
pub(in crate::gpu) fn tile_of(gpu: &Gpu, products: &[RowProduct], dtype: Dtype, samples: &Samples) -> Tile {
    let tile = Tile::of_blocks(large_blocks(products.iter().map(|one| one.shape)));
    let matrices = products.iter().flat_map(RowProduct::matrices);
    match SampleMaps::of(samples).operands(matrices) {
        Some(operands) => tile.or_wgmma(gpu, &operands, dtype),
        None => tile,
    }
}

/// The number of large tiles of products with these shapes.
fn large_blocks(shapes: impl Iterator<Item = [usize; 2]>) -> usize {
    shapes.map(|[outs, width]| Tile::Large.blocks(outs, width)).sum()
}

/// One launch of weight gradients over the same rows. Writes nothing if there are no rows.
///
/// # Safety
/// The addresses are valid for operands of these shapes in `dtype`, with as many rows as the samples; no gradient
/// overlaps another.
pub(in crate::gpu) unsafe fn weights(
    gpu: &Gpu,
    products: &[RowProduct],
    dtype: Dtype,
    samples: &Samples,
    tile: Tile,
) -> Result<()> {
    if samples.rows() == 0 || products.is_empty() {
        return Ok(());
    }
    if tile == Tile::Wgmma {
        // SAFETY: as promised by the caller.
        return unsafe { weights_by_wgmma(gpu, products, samples) };
    }
    let bounds = bounds(samples);
    let (table, blocks) = table(products, products.iter().map(|one| [one.dy, one.x]), tile);
    let (kernel, grid) = tile.launch(&WEIGHT_GRADIENT, dtype, [1, 1]);
    let grid = Grid { blocks: [blocks as u32, 1, 1], ..grid };
    let args = args![gpu.indices(&table)?, products.len(), gpu.indices(&bounds)?, bounds.len() - 1];
    // SAFETY: as promised by the caller; the table has the shapes and the first block of each product.
    unsafe { gpu.launch(kernel, grid, args) }
}

/// [`weights`] with [`Tile::Wgmma`].
///
/// # Safety
/// As [`weights`], in bf16.
unsafe fn weights_by_wgmma(gpu: &Gpu, products: &[RowProduct], samples: &Samples) -> Result<()> {
    let maps = SampleMaps::of(samples);
    let matrices: Vec<_> = products.iter().flat_map(RowProduct::matrices).collect();
    let operands = maps.maps_of(gpu, &matrices)?;
    let (table, tiles) =
        table(products, operands.chunks_exact(2).map(|pair| [pair[0], pair[1]]), Tile::Wgmma);
    let args = [args![gpu.indices(&table)?, products.len(), tiles], &maps.args(gpu)? as &[Arg]].concat();
    // SAFETY: as promised by the caller; the table has the shapes, the tensor maps and the first tile of each product.
    unsafe { gpu.launch("linear_dw_bf16_wgmma", gpu.wgmma_grid(tiles), &args) }
}

/// The table of products for a kernel, with the addresses of their operands, and the number of tiles.
fn table(products: &[RowProduct], operands: impl Iterator<Item = [At; 2]>, tile: Tile) -> (Vec<u32>, usize) {
    let (mut table, mut tiles) = (Vec::new(), 0);
    for (&RowProduct { dw, accumulate, shape: [outs, width], .. }, [dy, x]) in products.iter().zip(operands) {
        table.extend([dw, dy, x].into_iter().flat_map(|At(at)| [at as u32, (at >> 32) as u32]));
        table.extend([outs as u32, width as u32, tiles as u32, u32::from(accumulate)]);
        tiles += tile.blocks(outs, width);
    }
    (table, tiles)
}

/// A weight gradient that no launch has computed yet.
#[derive(Debug)]
struct Waiting {
    accumulate: bool,
    /// The gradient. Dropped: nobody can read it.
    dw: Weak<Buffer>,
    dy: Tensor,
    x: Tensor,
}

impl Waiting {
    fn shape(&self) -> [usize; 2] {
        [self.dy.width(), self.x.width()]
    }
}

/// Weight gradients that share a launch: over the same samples, in one dtype.
#[derive(Debug)]
struct Group {
    dtype: Dtype,
    samples: Samples,
    /// `None`: launched.
    waiting: Mutex<Option<Vec<Waiting>>>,
}

/// The group, in the buffer of each of its gradients.
#[derive(Debug, Clone)]
struct DeferredGradients(Arc<Group>);

impl Deferred for DeferredGradients {
    fn launch(&self, gpu: &Gpu, _: At) -> Result<()> {
        self.0.launch(gpu)
    }
}

impl Group {
    /// The open group of the device if these gradients can join it, otherwise a new one.
    fn open(gpu: &Gpu, dtype: Dtype, samples: &Samples) -> Arc<Group> {
        let mut slot = lock(gpu.open_group());
        let open = slot.upgrade().and_then(|group| group.downcast::<Group>().ok());
        let fits = |group: &Arc<Group>| {
            group.dtype == dtype
                && (group.samples == *samples || faults::on(Fault::GradientsOfOtherSamplesJoined))
                && lock(&group.waiting).is_some()
        };
        open.filter(fits).unwrap_or_else(|| {
            let waiting = Mutex::new(Some(Vec::new()));
            let group = Arc::new(Group { dtype, samples: samples.clone(), waiting });
            let any: Arc<dyn Any + Send + Sync> = group.clone();
            *slot = Arc::downgrade(&any);
            group
        })
    }

    /// Adds a gradient. Returns whether the group should be launched.
    fn join(&self, one: Waiting) -> bool {
        let mut waiting = lock(&self.waiting);
        let all = waiting.get_or_insert_default();
        all.push(one);
        let blocks = large_blocks(all.iter().map(Waiting::shape));
        let alone = faults::on(Fault::WeightGradientsNotShared);
        all.len() >= MAX_PRODUCTS || occupied(blocks) >= OCCUPIED || alone
    }

    /// Queues the kernel, unless it has been queued.
    fn launch(&self, gpu: &Gpu) -> Result<()> {
        let mut waiting = lock(&self.waiting);
        let Some(all) = &*waiting else { return Ok(()) };
        let mut products = Vec::with_capacity(all.len());
        // buffers stay alive until the kernel is queued
        let buffers: Vec<_> = all.iter().map(|one| one.dw.upgrade()).collect();
        for (one, buffer) in all.iter().zip(&buffers) {
            let Some(buffer) = buffer else { continue };
            let (dy, x) = (one.dy.at(gpu, self.dtype)?, one.x.at(gpu, self.dtype)?);
            products.push(RowProduct {
                dw: buffer.arg(),
                accumulate: one.accumulate,
                dy,
                x,
                shape: one.shape(),
            });
        }
        if faults::on(Fault::LastGradientOfGroupLost) && products.len() > 1 {
            products.pop();
        }
        let tile = tile_of(gpu, &products, self.dtype, &self.samples);
        // SAFETY: dw_i [outs_i, width_i], dy_i [rows, outs_i], x_i [rows, width_i] as the operation checked; each dw
        // has a buffer of its own.
        unsafe { weights(gpu, &products, self.dtype, &self.samples, tile)? };
        *waiting = None;
        Ok(())
    }
}

/// `dw += rowsum dy x`, deferred. The operands have been checked.
pub(crate) fn weight_gradient(
    gpu: &Gpu,
    dw: &mut Tensor,
    dy: &Tensor,
    x: &Tensor,
    samples: &Samples,
) -> Result<()> {
    let dtype = x.dtype();
    dy.at(gpu, dtype)?;
    x.at(gpu, dtype)?;
    if samples.rows() == 0 {
        return Ok(());
    }
    let [start, _] = dw.accumulator_at(gpu)?;
    let accumulate = start != At(0);
    let group = Group::open(gpu, dtype, samples);
    dw.defer(DeferredGradients(group.clone()));
    let full = group.join(Waiting { accumulate, dw: dw.weak_buffer(), dy: dy.clone(), x: x.clone() });
    if full { group.launch(gpu) } else { Ok(()) }
}
