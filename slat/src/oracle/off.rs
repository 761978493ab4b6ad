//! The hooks of a build without the oracle: types without a size, and functions that do nothing.

#![allow(clippy::unused_self, reason = "as with the oracle")]

use crate::addr::{Gfn, Hva, Pfn, Span};
use crate::dirty::harvest::TakenWords;
use crate::host::{Host, HostPage, VcpuId};
use crate::loaded::Tag;
use crate::notify::begun::{Begun, Range, Scope};
use crate::slots::SpaceId;
use crate::sync::idle::Idle;
use crate::sync::readside::Seat;
use crate::table::format::Format;
use crate::vm::{Policy, Vm};
use crate::why::Reason;
use core::marker::PhantomData;

/// The host of a VM: itself.
pub(crate) type Checked<H> = H;

/// The oracle's part of a builder.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Setup;

#[inline(always)]
pub(crate) fn setup() -> Setup {
    Setup
}

#[inline(always)]
#[expect(clippy::extra_unused_type_parameters, reason = "the oracle uses the format")]
pub(crate) fn attach<F: Format, H: Host>(host: H, _: Setup, _: &Policy) -> Checked<H> {
    host
}

#[inline(always)]
pub(crate) fn host_of<H>(checked: &Checked<H>) -> &H {
    checked
}

/// An open invalidation.
#[derive(Debug)]
pub(crate) struct Open<'vm>(PhantomData<&'vm ()>);

impl<'vm> Open<'vm> {
    #[inline(always)]
    pub(crate) fn begin<F: Format, H: Host>(_: &'vm Vm<F, H>, _: Range, _: Reason) -> Self {
        Self(PhantomData)
    }

    #[inline(always)]
    pub(crate) fn is_the_hosts(&mut self) {}

    #[inline(always)]
    pub(crate) fn told(&mut self, _: Span<Hva>, _: Option<HostPage>) {}

    #[inline(always)]
    pub(crate) fn settled<F: Format, H: Host>(&mut self, _: &Vm<F, H>) {}
}

#[inline(always)]
pub(crate) fn edited<F: Format, H: Host>(
    _: &mut Begun<'_, F, H>,
    _: &mut Idle,
    _: &Scope<'_>,
    _: Option<&Seat>,
) {
}

/// A vCPU's stay in the guest.
#[derive(Debug)]
pub(crate) struct Stay<'a>(PhantomData<&'a ()>);

impl<'a> Stay<'a> {
    #[inline(always)]
    pub(crate) fn begin<H: Host>(_: &'a Checked<H>, _: (VcpuId, SpaceId, Tag)) -> Self {
        Self(PhantomData)
    }

    #[inline(always)]
    pub(crate) fn loads(&self, root: Pfn) -> Pfn {
        root
    }

    #[inline(always)]
    pub(crate) fn runs(&self, _: Pfn) {}

    #[inline(always)]
    pub(crate) fn polls(&self, kicked: bool) -> bool {
        kicked
    }

    #[inline(always)]
    pub(crate) fn answers(&self, _: bool) {}
}

#[inline(always)]
pub(crate) fn guest_was_leaked<H: Host>(_: &Checked<H>, _: VcpuId) {}

#[inline(always)]
pub(crate) fn ends<H: Host>(_: &Checked<H>) {}

#[inline(always)]
pub(crate) fn logs_in_rings<H: Host>(_: &Checked<H>) {}

/// Harvests that are being taken.
pub(crate) struct Harvesting;

#[inline(always)]
pub(crate) fn harvesting<H: Host>(_: &Checked<H>, _: bool) -> Harvesting {
    Harvesting
}

#[inline(always)]
pub(crate) fn harvested<H: Host>(_: &Checked<H>, _: (SpaceId, Span<Gfn>), _: &TakenWords) {}
