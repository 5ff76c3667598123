package distro

import "cmp"

// clouds are the node images of cloud providers: kubelet is a unit of its own.
func clouds() []Distribution {
	runtime := Runtime{Socket: standardSocket, CNIConf: standardCNI, CNIBins: []string{standardBins}}
	node := func(d Distribution) Distribution {
		d.Units, d.RuntimeUnits = []string{"kubelet"}, []string{"containerd"}
		d.Kubelet.Root = standardRoot
		if d.Runtime.Socket == "" {
			d.Runtime = runtime
		}
		d.Found, d.Set = cmp.Or(d.Found, findsAll), cmp.Or(d.Set, nothingToSet)
		return d
	}
	return []Distribution{
		node(Distribution{
			ID: "bottlerocket", Name: "Bottlerocket", Config: "/etc/kubernetes/kubelet/config",
			Flags:   []string{"--kubeconfig=/etc/kubernetes/kubelet/kubeconfig"},
			Kubelet: Kubelet{Kubeconfig: "/etc/kubernetes/kubelet/kubeconfig", StaticPods: "/etc/kubernetes/static-pods"},
			Traces:  []string{"/etc/kubernetes/kubelet/config"}, Install: installDaemon,
			Sources: []string{"https://github.com/bottlerocket-os/bottlerocket-core-kit/tree/develop/packages/kubernetes-1.31"},
		}),
		node(Distribution{
			ID: "eks-al2023", Name: "EKS, Amazon Linux 2023", Config: "/etc/kubernetes/kubelet/config.json",
			ConfigDir: "/etc/kubernetes/kubelet/config.json.d", Flags: []string{"--kubeconfig=" + bootstrapped},
			Kubelet: Kubelet{Kubeconfig: bootstrapped, StaticPods: ""},
			Traces:  []string{"/etc/kubernetes/kubelet/config.json", "/etc/eks/kubelet/environment"},
			Install: installPackage,
			Sources: []string{"https://github.com/awslabs/amazon-eks-ami/tree/main/nodeadm/internal/kubelet"},
		}),
		node(Distribution{
			ID: "eks-al2", Name: "EKS, Amazon Linux 2", Config: "/etc/kubernetes/kubelet/kubelet-config.json",
			Flags:   []string{"--kubeconfig=" + bootstrapped},
			Kubelet: Kubelet{Kubeconfig: bootstrapped},
			Traces:  []string{"/etc/kubernetes/kubelet/kubelet-config.json"}, Install: installPackage,
			Sources: []string{"https://github.com/awslabs/amazon-eks-ami/tree/main/templates/al2"},
		}),
		node(Distribution{
			ID: "gke", Name: "GKE", Config: "/home/kubernetes/kubelet-config.yaml",
			Flags:   []string{"--kubeconfig=" + bootstrapped},
			Kubelet: Kubelet{Kubeconfig: bootstrapped, StaticPods: manifests},
			Runtime: Runtime{Socket: standardSocket, CNIConf: standardCNI, CNIBins: []string{"/home/kubernetes/bin"}},
			Traces:  []string{"/home/kubernetes/kubelet-config.yaml"}, Install: installDaemon,
			Sources: []string{"https://github.com/kubernetes/kubernetes/blob/master/cluster/gce/gci/configure-helper.sh"},
		}),
		node(Distribution{
			ID: "aks", Name: "AKS", Config: "/etc/default/kubeletconfig.json",
			Flags:   []string{"--kubeconfig=" + bootstrapped},
			Kubelet: Kubelet{Kubeconfig: bootstrapped, StaticPods: manifests},
			Traces:  []string{"/etc/default/kubeletconfig.json", "/etc/kubernetes/azure.json"}, Install: installDaemon,
			Sources: []string{"https://github.com/Azure/AgentBaker/tree/master/parts/linux/cloud-init/artifacts"},
		}),
	}
}

// containers are the distributions whose kubelet runs in a container, or whose runtime is CRI-O.
func containers() []Distribution {
	return []Distribution{{
		ID: "openshift", Name: "OpenShift", Units: []string{"kubelet"}, RuntimeUnits: []string{"crio"},
		Config: "/etc/kubernetes/kubelet.conf", Flags: []string{"--kubeconfig=" + bootstrapped},
		Kubelet: Kubelet{standardRoot, bootstrapped, manifests},
		Runtime: Runtime{Socket: crioSocket, Config: "/etc/crio/crio.conf", CNIConf: "/etc/kubernetes/cni/net.d",
			CNIBins: []string{"/var/lib/cni/bin"}},
		Traces: []string{"/etc/systemd/system/kubens.service", "/usr/lib/systemd/system/kubens.service",
			"/etc/machine-config-daemon", "/usr/local/bin/kubenswrapper"},
		Found:   findsAll + "; if kubelet has its own mount namespace (kubens), once you set paths.kubeletElsewhere",
		Set:     "paths.kubeletElsewhere: true, if kubelet.service starts it through kubenswrapper",
		Install: installDaemon, Sources: []string{
			"https://github.com/openshift/machine-config-operator/blob/master/templates/worker/01-worker-kubelet/_base/units/kubelet.service.yaml"},
	}, {
		ID: "rke1", Name: "RKE1", RuntimeUnits: []string{"docker"},
		Commands: &Commands{Start: "docker start kubelet", Restart: "docker restart kubelet",
			Status: "docker ps -a -f name=kubelet", Logs: "docker logs kubelet"},
		Flags:   []string{"--kubeconfig=/etc/kubernetes/ssl/kubecfg-kube-node.yaml"},
		Kubelet: Kubelet{standardRoot, "/etc/kubernetes/ssl/kubecfg-kube-node.yaml", manifests},
		Runtime: Runtime{Socket: dockerdSocket, CNIConf: standardCNI, CNIBins: []string{standardBins}},
		Traces: []string{"/etc/kubernetes/ssl/kubecfg-kube-node.yaml",
			"/opt/rke/etc/kubernetes/ssl/kubecfg-kube-node.yaml"},
		Found: "all, once you set paths.kubeletElsewhere: kubelet runs in a container of Docker's, with the host's PIDs",
		Set:   "paths.kubeletElsewhere: true", Install: installPackage,
		Sources: []string{"https://github.com/rancher/rke/blob/release/v1.6/cluster/plan.go"},
	}, {
		ID: "talos", Name: "Talos", Config: "/etc/kubernetes/kubelet.yaml", RuntimeUnits: nil,
		Commands: &Commands{Start: "talosctl service kubelet start", Restart: "talosctl service kubelet restart",
			Status: "talosctl service kubelet", Logs: "talosctl logs kubelet"},
		Flags:   []string{"--kubeconfig=/etc/kubernetes/kubeconfig-kubelet"},
		Kubelet: Kubelet{standardRoot, "/etc/kubernetes/kubeconfig-kubelet", manifests},
		Runtime: Runtime{Socket: standardSocket, Config: "/etc/cri/containerd.toml", CNIConf: standardCNI,
			CNIBins: []string{standardBins}},
		Traces: []string{"/etc/kubernetes/kubeconfig-kubelet", "/etc/kubernetes/kubelet.yaml"},
		Found:  "all, once you set paths.kubeletElsewhere: kubelet runs in a container of the namespace system",
		Set:    "paths.kubeletElsewhere: true", Install: installDaemon + ", privileged, with hostPID",
		Sources: []string{"https://github.com/siderolabs/talos/blob/main/pkg/machinery/constants/constants.go"},
	}}
}

// plain are kubeadm and what is built on it. A node is of kubeadm where nothing tells otherwise.
func plain() []Distribution {
	kubeadm := Distribution{
		Units: []string{"kubelet"}, RuntimeUnits: []string{"containerd", "crio", "cri-o", "cri-docker", "docker"},
		Config:  kubeadmConfig,
		Flags:   []string{"--kubeconfig=" + kubeadmKubecfg},
		Kubelet: Kubelet{standardRoot, kubeadmKubecfg, manifests},
		Runtime: Runtime{Socket: standardSocket, Config: "/etc/containerd/config.toml", Root: "/var/lib/containerd",
			State: containerdState, CNIConf: standardCNI, CNIBins: []string{standardBins, "/usr/lib/cni"}},
		Found: findsAll, Set: nothingToSet, Install: installPackage,
	}
	minikube, kind := kubeadm, kubeadm
	minikube.ID, minikube.Name = "minikube", "minikube"
	minikube.Traces = []string{"/var/lib/minikube/binaries", "/var/lib/minikube/certs"}
	minikube.Sources = []string{"https://minikube.sigs.k8s.io/docs/handbook/"}
	minikube.Install = installDaemon
	kind.ID, kind.Name = "kind", "kind"
	kind.Traces = []string{"/kind/version", "/kind/kubeadm.conf"}
	kind.Sources = []string{"https://kind.sigs.k8s.io/docs/design/node-image/"}
	kind.Install = installDaemon
	kubeadm.ID, kubeadm.Name = "kubeadm", "kubeadm"
	kubeadm.Traces = []string{kubeadmKubecfg, kubeadmConfig, "/usr/bin/kubelet", "/usr/local/bin/kubelet",
		"/opt/bin/kubelet"}
	kubeadm.Sources = []string{"https://kubernetes.io/docs/reference/setup-tools/kubeadm/implementation-details/"}
	return []Distribution{minikube, kind, kubeadm}
}
