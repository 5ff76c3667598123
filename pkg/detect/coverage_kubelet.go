package detect

func kubeletCoverage() []Coverage {
	const inspected = "the inspection finds it (`nodeagent inspect`): it takes the word of kubelet, runtime and apiserver together to call something a leftover, and several passes"
	return []Coverage{
		{Fault: "kubelet restarts often", By: []string{restartsID}},
		{Fault: "A process calls itself kubelet or the runtime and is not root's own", By: []string{"daemon-impostors"}},
		{Fault: "kubelet is unhealthy (healthz)", By: []string{"kubelet-health"}},
		{Fault: "kubelet's unit has failed", By: []string{"kubelet-health", restartsID}},
		{Fault: "kubelet hangs; the node is NotReady", By: []string{"kubelet-health", plegID, registrationID}},
		{Fault: "PLEG is not healthy", By: []string{plegID}},
		{Fault: "kubelet's certificate expires or has expired; its signing request is not approved", By: []string{certificatesID}},
		{Fault: "kubelet's calls to the apiserver fail", By: []string{syncID}},
		{Fault: "kubelet starts pods slowly; calls of the runtime fail", By: []string{syncID, stuckPodsID}},
		{Fault: "pod directories and volumes without a pod", Not: inspected},
		{Fault: "leaked mounts, cgroups, network namespaces, CNI addresses and snapshots", Not: inspected},
		{Fault: "OCI runtime create failed", By: []string{stuckPodsID}},
		{Fault: "image garbage collection fails", By: []string{evictionsID}},
		{Fault: "pods are evicted; thresholds are near", By: []string{evictionsID, registrationID}},
		{Fault: "a pod is stuck terminating", By: []string{stuckPodsID}},
		{Fault: "a pod is stuck in ContainerCreating", By: []string{stuckPodsID}},
		{Fault: "many probes fail at once", By: []string{probeStormsID}},
		{Fault: "a CSI plugin is not registered", By: []string{"csi-registration"}},
		{Fault: "volumes cannot be mounted, by driver", By: []string{volumeMountsID, "csi-registration", stuckPodsID}},
		{Fault: "a critical DaemonSet has no pod on the node", By: []string{"critical-daemonsets"}},
		{Fault: "kubelet's configuration has drifted from its file", By: []string{kubeletConfigID}},
		{Fault: "kubelet's running configuration differs from the fleet's",
			Not: "kubelet shows it only to who may get nodes/configz, and what is right for the fleet is not known on the node"},
		{Fault: "the Node is not registered, or two machines share its name", By: []string{registrationID}},
		{Fault: "the node's lease is not renewed",
			Not: "the control plane judges it and makes Ready Unknown, which node-registration sees; reading the lease takes a right in kube-node-lease and a request that each node would repeat"},
	}
}
