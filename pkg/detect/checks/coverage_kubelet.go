package checks

func kubeletCoverage() []Coverage {
	const inspected = "the inspection finds it (`nodeagent inspect`): it takes the word of kubelet, runtime and " +
		"apiserver together to call something a leftover, and several passes"
	return []Coverage{
		{Fault: "kubelet restarts often", By: []string{"kubelet-restarts"}},
		{Fault: "A process calls itself kubelet or the runtime and is not root's own",
			By: []string{"daemon-impostors"}},
		{Fault: "kubelet is unhealthy (healthz)", By: []string{"kubelet-health"}},
		{Fault: "kubelet's unit has failed", By: []string{"kubelet-health", "kubelet-restarts"}},
		{Fault: "kubelet hangs; the node is NotReady", By: []string{"kubelet-health", "kubelet-pleg",
			"node-registration"}},
		{Fault: "PLEG is not healthy", By: []string{"kubelet-pleg"}},
		{Fault: "kubelet's certificate expires or has expired; its signing request is not approved",
			By: []string{"kubelet-certificates"}},
		{Fault: "kubelet's calls to the apiserver fail", By: []string{"kubelet-sync"}},
		{Fault: "kubelet starts pods slowly; calls of the runtime fail", By: []string{"kubelet-sync", "stuck-pods"}},
		{Fault: "pod directories and volumes without a pod", Not: inspected},
		{Fault: "leaked mounts, cgroups, network namespaces, CNI addresses and snapshots", Not: inspected},
		{Fault: "OCI runtime create failed", By: []string{"stuck-pods"}},
		{Fault: "image garbage collection fails", By: []string{"evictions"}},
		{Fault: "pods are evicted; thresholds are near", By: []string{"evictions", "node-registration"}},
		{Fault: "a pod is stuck terminating", By: []string{"stuck-pods"}},
		{Fault: "a pod is stuck in ContainerCreating", By: []string{"stuck-pods"}},
		{Fault: "many probes fail at once", By: []string{"probe-storms"}},
		{Fault: "a CSI plugin is not registered", By: []string{"csi-registration"}},
		{Fault: "volumes cannot be mounted, by driver", By: []string{"volume-mounts", "csi-registration",
			"stuck-pods"}},
		{Fault: "a critical DaemonSet has no pod on the node", By: []string{"critical-daemonsets"}},
		{Fault: "kubelet's configuration has drifted from its file", By: []string{"kubelet-config"}},
		{Fault: "kubelet's running configuration differs from the fleet's",
			Not: "kubelet shows it only to who may get nodes/configz, and what is right for the fleet is not known " +
				"on the node"},
		{Fault: "the Node is not registered, or two machines share its name", By: []string{"node-registration"}},
		{Fault: "the node's lease is not renewed",
			Not: "the control plane judges it and makes Ready Unknown, which node-registration sees; reading the " +
				"lease takes a right in kube-node-lease and a request that each node would repeat"},
	}
}
