package checks

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// suggestions lists the actions that findings ask of others, by reason. The node itself takes none of them. A reason
// not listed needs no action: it goes by itself, or somebody who reads the advice decides.
func suggestions() map[finding.SuggestedAction]string {
	return map[finding.SuggestedAction]string{
		// The part is broken, or reports that it soon will be.
		finding.SuggestReplaceHardware: `
			MemoryUncorrectedError MemoryReadError MemoryCorrupted MemoryFailureUnrecovered
			NVMeDead NVMeReadOnly NVMeDegraded NVMeMediaErrors NVMeSpareLow NVMeDisabled
			DiskFailing DiskBadSectors DiskMediumError
			RAIDDiskFailed RAIDBadBlocks BtrfsDeviceErrors
			FanFailed PowerSupplyFailed
			PCIeFatalError PCIeUncorrectedError CperHardwareErrorFatal MachineCheckUncorrected
			NICHardwareError`,
		// Kernel state that only a boot clears, and filesystems that are repaired before they are mounted.
		finding.SuggestReboot: `
			KernelPanic KernelOops KernelBug HardLockup SoftLockup RCUStall KernelMemoryCorruption
			WorkqueueLockup UnregisterNetDevice SystemdNotAnswering DiskHung SlabLeak
			DaemonSetPodHungInKernel
			FilesystemShutdown XfsHasShutdown Ext4Shutdown FilesystemRemountedReadOnly FilesystemEmergencyReadOnly
			FilesystemIsReadOnly JournalAborted BtrfsReadOnly ZFSPanic`,
		// The data on the disks is lost.
		finding.SuggestReinstall: `
			RAIDFailed ZFSPoolFailed ZFSPoolSuspended ThinPoolFailed`,
		// The node cannot serve pods, and the remedy is not on the node, or differs from one site to the next.
		finding.SuggestHuman: `
			BondDown LinkDown LoopbackDown LoopbackWithoutAddress DefaultRouteLost PortDown
			CNIConfigInvalid CNIConfigMissing CNIPluginMissing CNIPluginNotExecutable NetworkNotReady
			CSIDriverNotReady CSIDriverPodMissing CSIGetInfoFailed CSIRegistrationRejected CSISocketMissing CSISocketStale
			DaemonSetPodCrashLooping DaemonSetPodMissing DaemonSetPodNotAnswering DaemonSetPodNotReady DaemonSetPodNotScheduled
			DNSNotAnswering DNSPortRefused DNSUnreachable
			KubeProxyNotAnswering KubeProxyNotRunning KubeProxyNotSyncing
			KubeletCertificateExpired KubeletHealthzFailed KubeletHung KubeletNotAnswering KubeletNotListening
			KubeletNotRunning KubeletPortTaken KubeletStopped PLEGUnhealthy NodeIsAnotherMachine
			RuntimeFailing RuntimeHung RuntimeNotAnswering RuntimeNotReady RuntimeNotRunning RuntimeSocketMissing
			RuntimeStopped
			DiskFull InodesExhausted DiskOffline FilesystemDeviceGone MountBroken MountHung MultipathNoPath ThinPoolFull
			ThinPoolReadOnly
			CgroupTasksNearLimit TasksNearLimit FileHandlesNearLimit FileHandlesExhausted
			MountsNearLimit MemoryCgroupsNearLimit ConntrackFull HighLoad
			MemoryPressureStall OOMKilling CriticalTemperature
			ClusterNodeFenced RootMountFailed LastBootHardwareError WatchdogHardwareFault`,
	}
}

// SuggestedAction returns the action to ask of others for a reason; empty if there is none.
func SuggestedAction(reason string) finding.SuggestedAction {
	for action, reasons := range suggestions() {
		for r := range strings.FieldsSeq(reasons) {
			if r == reason {
				return action
			}
		}
	}
	return ""
}

// suggest returns the suggested action of a finding, and the part that it is about.
func suggest(h *host.Host, f finding.Finding) (finding.SuggestedAction, string) {
	action := SuggestedAction(f.Reason)
	if action != finding.SuggestReplaceHardware {
		return action, ""
	}
	return action, part(h, f)
}

// part names the part to replace by its label, as far as the kernel knows it without asking the device. It opens no
// file that could hang.
func part(h *host.Host, f finding.Finding) string {
	what := f.Subject.Kind + " " + f.Subject.Name
	for _, fact := range []struct{ key, label string }{{"serial", "serial number"}, {"wwid", "WWID"}} {
		if value := f.Facts[fact.key]; value != "" {
			return checkkit.Sanitize(fmt.Sprintf("%s, %s %s", what, fact.label, value), maxPart)
		}
	}
	if h == nil || f.Subject.Name != filepath.Base(f.Subject.Name) {
		return checkkit.Sanitize(what, maxPart)
	}
	for _, file := range []struct{ path, label string }{
		{"/sys/block/%s/device/serial", "serial number"}, // nvme_show_serial: of an NVMe namespace's controller
		{"/sys/block/%s/device/wwid", "WWID"},            // scsi: from the inquiry at discovery; of ATA with the serial
		{"/sys/class/nvme/%s/serial", "serial number"},
		{"/sys/class/net/%s/address", "address"},
	} {
		text, err := checkkit.OptionalDeviceText(h.Files, fmt.Sprintf(file.path, f.Subject.Name))
		if text = strings.Join(strings.Fields(text), " "); err == nil && text != "" {
			return checkkit.Sanitize(fmt.Sprintf("%s, %s %s", what, file.label, text), maxPart)
		}
	}
	return checkkit.Sanitize(what, maxPart)
}

// maxPart bounds the name of a part, in bytes.
const maxPart = 256
