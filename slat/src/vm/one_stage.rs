//! VMs on a processor without a second stage of translation.

use super::Builder;
use crate::host::Host;
use crate::table::format::HostPaging;

impl<F: HostPaging, H: Host> Builder<F, H> {
    /// Declares that the host's processor has no second stage of translation (no EPT, no NPT). The tables that vCPUs
    /// run on then translate guest-virtual addresses. While the guest's paging is on, they are a shadow of its page
    /// table ([`Vcpu::guest_paging`](crate::Vcpu::guest_paging)); otherwise they are the VM's own table, a direct map.
    /// The VM refuses nested guests. Only a format that a processor walks from its own addresses has this call
    /// ([`HostPaging`]).
    ///
    /// ```compile_fail,E0599
    /// # use slat::{*, table::formats::Ept4};
    /// # fn build<H: Host>(host: H) {
    /// // E0599: no processor walks EPT without two stages.
    /// let _ = Vm::<Ept4, _>::builder(host).without_two_stages();
    /// # }
    /// ```
    pub fn without_two_stages(mut self) -> Self {
        self.policy.has_two_stages = false;
        self
    }
}
