package checks

// spokenCoverage is of faults that daemons tell of in saved logs (nodeagent replay). The checks named beside the
// rules find the same on a running node, from its state.
func spokenCoverage() []Coverage {
	return []Coverage{
		{Fault: "in saved logs: kubelet or its unit has failed, was killed, or restarts often", By: []string{"kubelet-start-failed", "kubelet-unit-failed", "kubelet-killed", "kubelet-unit-flapping", "kubelet-restarted", "kubelet-health", "kubelet-restarts"}},
		{Fault: "in saved logs: PLEG is not healthy", By: []string{"kubelet-pleg-silent", "kubelet-pleg"}},
		{Fault: "in saved logs: kubelet calls the node not ready, or short of something", By: []string{"kubelet-not-ready", "kubelet-pressure", "node-registration"}},
		{Fault: "in saved logs: kubelet cannot register the node, or tell the apiserver that it lives", By: []string{"kubelet-apiserver", "kubelet-not-registered", "kubelet-node-unknown", "kubelet-apiserver-calls", "kubelet-sync", "node-registration"}},
		{Fault: "in saved logs: a certificate between kubelet and apiserver has expired, or waits to be signed", By: []string{"kubelet-certificate-expired", "kubelet-certificate-waits", "kubelet-certificates"}},
		{Fault: "in saved logs: image garbage collection fails, pods are evicted", By: []string{"kubelet-image-gc", "kubelet-evicts", "kubelet-eviction-threshold", "evictions"}},
		{Fault: "in saved logs: volumes cannot be mounted or unmounted, a CSI plugin is not registered", By: []string{"kubelet-volume-mount", "kubelet-volume-unmount", "kubelet-csi-missing", "volume-mounts", "csi-registration"}},
		{Fault: "in saved logs: volumes of a pod that is gone are still there", By: []string{"kubelet-orphaned-pod"}},
		{Fault: "in saved logs: sandboxes or containers cannot be made", By: []string{"kubelet-sandbox-failed", "runtime-sandbox-failed", "runtime-name-reserved", "oci-create-failed", "etc-hosts-mount", "stuck-pods"}},
		{Fault: "in saved logs: pods that end cannot be stopped", By: []string{"kubelet-pod-kill-failed", "stuck-pods"}},
		{Fault: "in saved logs: the network plugin cannot connect pods, or has no address left for them", By: []string{"kubelet-network-not-ready", "runtime-network-setup", "runtime-cni-missing", "daemon-no-addresses", "cni-config"}},
		{Fault: "in saved logs: many probes fail at once", By: []string{"kubelet-probes-fail", "probe-storms"}},
		{Fault: "in saved logs: the container runtime is down, slow, restarts, or loses its shims", By: []string{"kubelet-runtime-down", "kubelet-runtime-slow", "runtime-slow", "runtime-failed", "runtime-shim-failed", "runtime-unit-failed", "runtime-unit-flapping", "runtime-restarted", "runtime-killed", "runtime-health"}},
		{Fault: "in saved logs: files of the image store are damaged", By: []string{"image-store-corrupt"}},
		{Fault: "in saved logs: a daemon cannot fork, open files, or write", By: []string{"daemon-fork-failed", "daemon-descriptors", "daemon-disk-full", "daemon-readonly", "daemon-io-error", "task-limits", "file-handles", "disk-space", "filesystem-readonly"}},
		{Fault: "in saved logs: kubelet or the runtime crashed", By: []string{"daemon-panic"}},
		{Fault: "in saved logs: systemd itself crashed, or the machine waits in emergency mode", By: []string{"systemd-dead", "emergency-mode"}},
		{Fault: "in saved logs: a unit failed, hangs, or restarts often", By: []string{"unit-failed", "system-unit-failed", "unit-hung", "unit-flapping", "unit-restarted"}},
		{Fault: "in saved logs: a filesystem of /etc/fstab could not be mounted", By: []string{"mount-failed", "fstab-mounts"}},
		{Fault: "in saved logs: memory was short and something was killed", By: []string{"unit-oom", "container-unit-oom", "oomd-killed", "oom-kills"}},
		{Fault: "in saved logs: the journal is damaged, not written, or loses messages", By: []string{"journal-corrupted", "journal-not-written", "journal-lost"}},
		{Fault: "in saved logs: a disk fails, has bad sectors, is too hot, or does not answer, by smartd", By: []string{"smartd-unreachable", "smartd-failing", "smartd-bad-sectors", "smartd-temperature", "smartd-errors", "disk-health"}},
		{Fault: "in saved logs: paths, arrays or connections of disks are lost, by their daemons", By: []string{"multipathd-no-path", "multipathd-path-failed", "mdadm-degraded", "iscsid-connection", "multipath", "md-arrays"}},
		{Fault: "in saved logs: a device does not answer udev", By: []string{"udev-stuck"}},
		{Fault: "in saved logs: errors of memory, processors and PCIe, by mcelog and rasdaemon", By: []string{"mcelog-threshold", "mcelog-uncorrected", "mcelog-corrected", "edac"}},
		{Fault: "in saved logs: the clock is wrong, or has no source", By: []string{"time-unsynchronised", "time-server-silent", "time-jump", "time-sync"}},
		{Fault: "in saved logs: a network card lost its link or its address, or shares it", By: []string{"network-carrier-lost", "network-address-conflict", "network-address-lost", "link-state", "default-route"}},
	}
}
