package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// gpuRules: NVIDIA's drivers (nvidia, nvidia-nvswitch), which are not in the kernel's sources: recorded lines, numbers
// from NVIDIA's catalogue of Xid errors; drivers/gpu/drm/amd/amdgpu/{amdgpu_device,amdgpu_job,mes_*}.c.
func gpuRules() []Rule {
	const nvidia = `^NVRM: `
	return []Rule{{
		ID: "gpu-lost", Reason: "GPULost", Domain: Hardware, Severity: finding.Warning,
		Summary: "a GPU is gone from the PCIe bus, or its driver could not start it",
		Advice: "`nvidia-smi -L` (or `rocm-smi`) for the GPUs that are left, `lspci -vv` for the link; cordon the node, " +
			"power-cycle it (a reboot is often not enough), and if it comes again: power cables, riser, replacement.",
		Patterns: []string{
			`^amdgpu (?P<subject>` + pciAddress + `): (?:amdgpu: )?(?:Fatal error during GPU init|device lost from bus!)`,
			nvidia + `Xid \(PCI:(?P<subject>[0-9a-fA-F:.]{7,16})\): (?P<xid>79)\b`,
			nvidia + `GPU (?:at )?(?:PCI:)?(?P<subject>[0-9a-fA-F]{4,8}:[0-9a-fA-F:.]{2,8}[0-9a-fA-F])[: ]+.*fallen off the bus`,
			nvidia + `fallen off the bus and is not responding to commands`,
			nvidia + `(?:The NVIDIA probe routine failed for \d+ device|RmInitAdapter failed|rm_init_adapter failed)`,
		},
		Kind: "gpu", Report: "gpu-lost", Expiry: UntilBoot,
	}, {
		// ECC, row remapping, NVLink, GSP, the channel to the GPU: the hardware's or the driver's fault.
		ID: "gpu-hardware-error", Reason: "GPUHardwareError", Domain: Hardware, Severity: finding.Warning,
		Summary: "a GPU, its memory or its NVLink reports an error (of NVIDIA's, a Xid) that a program cannot cause",
		Advice: "`nvidia-smi -q -d ECC,ROW_REMAPPER` and `nvidia-smi nvlink -e`, AMD: `amd-smi metric --ecc`; drain the node, then `nvidia-smi " +
			"--gpu-reset -i N`, or reboot; again after that: `dcgmi diag -r 3` and replacement.",
		Patterns: []string{
			nvidia + `Xid \(PCI:(?P<subject>[0-9a-fA-F:.]{7,16})\): (?P<xid>48|6[1-4]|7[48]|9[2-5]|110|119|12[01]|13[67]|14[0-9]|15[4-8])\b`,
			// the open modules, when the firmware on the GPU (GSP) does not respond
			nvidia + `(?:(?P<subject>GPU\d+) )?(?:_kgspIsHeartbeatTimedOut: Heartbeat timed out|_kgspLogRpcTimeout: )`,
			`^amdgpu (?P<subject3>` + pciAddress + `): (?:amdgpu: )?[Uu]ncorrectable hardware error\(ERREVENT_`,
			`^nvidia-nvswitch\d+: SXid \(PCI:(?P<subject2>[0-9a-fA-F:.]{7,16})\): (?P<xid>\d+), (?:Fatal|Non-fatal|Severity \d|Data \{)`,
		},
		Kind: "gpu", Expiry: 24 * time.Hour,
	}, {
		ID: "gpu-xid", Reason: "GPUXid", Domain: Hardware, Severity: finding.Info,
		Summary: "a GPU's driver reports an error (Xid), mostly of a program on the GPU; many in a short time point to the GPU",
		Advice: "The number is in NVIDIA's catalogue of Xid errors: 13, 31, 43 and 45 are mostly the program's. " +
			"`nvidia-smi -q` for the GPU's state.",
		Patterns: []string{nvidia + `Xid \(PCI:(?P<subject>[0-9a-fA-F:.]{7,16})\): (?P<xid>\d+)`},
		Kind:     "gpu", Escalate: Rate{10, time.Hour}, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}, {
		ID: "amdgpu-hang", Reason: "GPUHang", Domain: Hardware, Severity: finding.Warning,
		Summary: "an AMD GPU hangs, and is reset or lost",
		Advice: "`rocm-smi` (or `amd-smi list`) for its state; a reset that fails needs a reboot. If it comes again: " +
			"firmware and driver (`amd-smi firmware`), power, replacement.",
		Patterns: []string{
			`^(?:amdgpu (?P<subject>` + pciAddress + `): (?:amdgpu: )?(?:\[drm:[\w.]+ \[amdgpu\]\] )?|amdgpu: |\[drm:[\w.]+ \[amdgpu\]\] )(?:\*ERROR\* )?` +
				`(?:GPU reset begin!|GPU reset\(\d+\) failed|GPU reset end with ret = -|MES failed to response? |MES failed to respond to |MES might be in unrecoverable state|` +
				`ring \S+ timeout, signaled seq=|Ring \S+ reset failed|ring \S+ test failed \(-|IB test failed on \S+ \(-?\d|ib ring test failed \(-?\d|` +
				`qcm fence wait loop timeout expired|The cp might be in an unrecoverable state|GPU Recovery Failed: |` +
				`(?:ASIC|GPU pre asic) reset failed with err|(?:GPU mode[12]|Mode2) reset failed|PCIe error recovery failed, err:|` +
				`Timeout waiting for (?:VM flush (?:hub: \d|ACK)|sem acquire in VM flush))`,
			`^\[drm\] VRAM is lost due to GPU reset!`,
		},
		Kind: "gpu", Report: "amdgpu", Expiry: 24 * time.Hour,
	}, {
		ID: "amdgpu-page-fault", Reason: "GPUPageFault", Domain: Hardware, Severity: finding.Info,
		Summary: "a program on an AMD GPU accessed memory that it does not have; many in a short time point to the driver",
		Advice: "The line after it names the process: mostly its bug. Of several programs: update the driver and " +
			"the firmware (`amd-smi firmware`).",
		Patterns: []string{`^amdgpu (?P<subject>` + pciAddress + `): (?:amdgpu: )?\[\w+\] (?:[\w-]+ )?page fault \(src_id:\d+ ring:\d+ `},
		Kind:     "gpu", Report: "amdgpu", Escalate: Rate{10, time.Hour}, EscalateSeverity: finding.Warning, Expiry: time.Hour,
	}}
}
