package distro

import (
	"slices"
	"strings"
)

const (
	standardRoot    = "/var/lib/kubelet"
	standardSocket  = "/run/containerd/containerd.sock"
	standardCNI     = "/etc/cni/net.d"
	kubeadmConfig   = "/var/lib/kubelet/config.yaml"
	kubeadmKubecfg  = "/etc/kubernetes/kubelet.conf"
	bootstrapped    = "/var/lib/kubelet/kubeconfig"
	manifests       = "/etc/kubernetes/manifests"
	installPackage  = "rpm or DaemonSet"
	installDaemon   = "DaemonSet"
	findsAll        = "all, from kubelet's process; while it is dead, from its unit and files"
	findsEmbedded   = "all, from the files that the program writes for its kubelet, alive and dead"
	nothingToSet    = "no setting"
	crioSocket      = "/run/crio/crio.sock"
	dockerdSocket   = "/run/cri-dockerd.sock"
	rancherSocket   = "/run/k3s/containerd/containerd.sock"
	rancherState    = "/run/k3s/containerd"
	standardBins    = "/opt/cni/bin"
	containerdState = "/run/containerd"
)

// embedding are the distributions of one program that runs all of Kubernetes.
func embedding() []Distribution {
	rancher := func(d Distribution) Distribution {
		d.Launcher, d.Program = d.ID, "{data}/data/*/bin/*"
		d.DataFlag = []string{"--data-dir", "-d"}
		d.ConfigDir = "{data}/agent/etc/kubelet.conf.d"
		d.Flags = []string{"--kubeconfig={data}/agent/kubelet.kubeconfig", "--root-dir=" + standardRoot}
		d.Kubelet = Kubelet{standardRoot, "{data}/agent/kubelet.kubeconfig", "{data}/agent/pod-manifests"}
		d.Runtime = Runtime{Socket: rancherSocket, Config: "{data}/agent/etc/containerd/config.toml",
			Root: "{data}/agent/containerd", State: rancherState, Docker: "/run/k3s/cri-dockerd/cri-dockerd.sock"}
		d.Settings = []string{"/etc/rancher/" + d.ID + "/config.yaml", "/etc/rancher/" + d.ID + "/config.yaml.d"}
		d.Traces = []string{"{data}/agent/kubelet.kubeconfig", "{data}/agent/etc/kubelet.conf.d"}
		return d
	}
	k3s := rancher(Distribution{
		ID: "k3s", Name: "K3s", Programs: []string{"k3s", "k3s-server", "k3s-agent"},
		Units: []string{"k3s", "k3s-agent", "k3s-*"}, Data: "/var/lib/rancher/k3s",
		NoKubelet: func(args []string) bool { return has(args, "--disable-agent") },
		Found:     findsEmbedded + "; before K3s 1.32 the cluster's DNS stays unknown, as no file contains it",
		Set:       "before 1.32: paths.kubeletConfig, a file with clusterDNS, if the agent should check pods' DNS",
		Install:   installPackage,
		Sources: []string{"https://docs.k3s.io/installation/configuration",
			"https://github.com/k3s-io/k3s/blob/master/pkg/agent/containerd/containerd.go"},
	})
	k3s.Runtime.CNIConf = "{data}/agent/etc/cni/net.d"
	k3s.Runtime.CNIBins = []string{"{data}/data/cni", "{data}/data/current/bin"}
	rke2 := rancher(Distribution{
		ID: "rke2", Name: "RKE2", Units: []string{"rke2-server", "rke2-agent", "rke2-*"},
		Data: "/var/lib/rancher/rke2", Found: findsAll, Set: nothingToSet, Install: installPackage,
		Sources: []string{"https://docs.rke2.io/reference/server_config"},
	})
	rke2.Runtime.CNIConf, rke2.Runtime.CNIBins = standardCNI, []string{standardBins}
	edge := Distribution{
		ID: "kubeedge", Name: "KubeEdge", Programs: []string{"edgecore"}, Units: []string{"edgecore"}, Launcher: "edgecore",
		RuntimeUnits: []string{"containerd", "docker", "crio"},
		Config:       "/etc/kubeedge/config/edgecore.yaml",
		Kubelet:      Kubelet{standardRoot, "", "/etc/kubernetes/manifests"},
		Runtime:      Runtime{Socket: standardSocket},
		Traces:       []string{"/etc/kubeedge/config/edgecore.yaml"},
		Found:        "all but an identity: edgecore reaches the cluster through CloudCore",
		Set:          "paths.kubeconfig, if the agent should write conditions",
		Install:      "rpm",
		Sources: []string{"https://kubeedge.io/docs/setup/config",
			"https://github.com/kubeedge/kubeedge/tree/master/pkg/apis/componentconfig/edgecore/v1alpha2"},
	}
	return []Distribution{rke2, k3s, k0s(), edge}
}

func k0s() Distribution {
	return Distribution{
		ID: "k0s", Name: "k0s", Units: []string{"k0sworker", "k0scontroller"},
		Launcher: "k0s", Data: "/var/lib/k0s", DataFlag: []string{"--data-dir"}, Program: "{data}/bin/*",
		NoKubelet: func(args []string) bool {
			return slices.Contains(args, "controller") && !has(args, "--enable-worker") && !has(args, "--single")
		},
		Config: "{data}/kubelet-config.yaml",
		Flags: []string{"--root-dir={data}/kubelet", "--cert-dir={data}/kubelet/pki",
			"--kubeconfig={data}/kubelet.conf"},
		Kubelet: Kubelet{"{data}/kubelet", "{data}/kubelet.conf", ""},
		Runtime: Runtime{Socket: "/run/k0s/containerd.sock", Config: "/etc/k0s/containerd.toml",
			Root: "{data}/containerd", State: "/run/k0s/containerd", CNIConf: standardCNI,
			CNIBins: []string{standardBins}},
		Traces: []string{"{data}/kubelet.conf", "{data}/kubelet-config.yaml", "{data}/bin/kubelet"},
		Found:  findsAll, Set: nothingToSet, Install: installPackage,
		Sources: []string{"https://docs.k0sproject.io/stable/cli/k0s_worker/",
			"https://github.com/k0sproject/k0s/blob/main/pkg/component/worker/kubelet.go",
			"https://github.com/k0sproject/k0s/blob/main/pkg/component/worker/containerd/component.go"},
	}
}

// snaps are Canonical's.
func snaps() []Distribution {
	return []Distribution{{
		ID: "microk8s", Name: "MicroK8s", Programs: []string{"kubelite"},
		Units:        []string{"snap.microk8s.daemon-kubelite", "snap.microk8s.daemon-kubelet"},
		RuntimeUnits: []string{"snap.microk8s.daemon-containerd"},
		Data:         "/var/snap/microk8s/current", Common: "{data}/../common",
		Args: "{data}/args/kubelet", ArgsFlag: "--kubelet-args-file",
		Kubelet: Kubelet{"{common}/var/lib/kubelet", "{data}/credentials/kubelet.config", ""},
		Runtime: Runtime{Socket: "{common}/run/containerd.sock", Config: "{data}/args/containerd.toml",
			Root: "{common}/var/lib/containerd", State: "{common}/run/containerd",
			CNIConf: "{data}/args/cni-network", CNIBins: []string{"{data}/opt/cni/bin"}},
		Traces: []string{"{data}/args/kubelet"},
		Found:  findsEmbedded,
		Set: "no setting, but only root may write the files: `chmod -R g-w /var/snap/microk8s/current/args " +
			"/var/snap/microk8s/current/credentials`, which the group microk8s may write otherwise",
		Install: installPackage,
		Sources: []string{"https://microk8s.io/docs/configuring-services",
			"https://github.com/canonical/microk8s/tree/master/microk8s-resources/default-args"},
	}, {
		ID: "k8s-snap", Name: "Canonical Kubernetes (snap k8s)", Units: []string{"snap.k8s.kubelet"},
		RuntimeUnits: []string{"snap.k8s.containerd"},
		Data:         "/var/snap/k8s/common", Common: "/var/snap/k8s/common",
		Args:    "{common}/args/kubelet",
		Kubelet: Kubelet{standardRoot, kubeadmKubecfg, ""},
		Runtime: Runtime{Socket: standardSocket, Config: "/etc/containerd/config.toml", CNIConf: standardCNI,
			CNIBins: []string{standardBins}},
		Traces: []string{"{common}/args/kubelet"},
		Found:  findsAll, Set: nothingToSet, Install: installPackage,
		Sources: []string{"https://documentation.ubuntu.com/canonical-kubernetes/",
			"https://github.com/canonical/k8s-snap/blob/main/src/k8s/pkg/snap/snap.go"},
	}, {
		ID: "kubelet-snap", Name: "snap kubelet", Units: []string{"snap.kubelet.daemon"},
		RuntimeUnits: []string{"containerd", "docker"},
		Args:         "/var/snap/kubelet/current/args", Kubelet: Kubelet{Root: standardRoot},
		Runtime: Runtime{Socket: standardSocket}, Traces: []string{"/var/snap/kubelet/current/args"},
		Found: findsAll, Set: nothingToSet, Install: installPackage,
		Sources: []string{"https://snapcraft.io/kubelet"},
	}}
}

// has reports whether a switch is among arguments, on.
func has(args []string, flag string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		name, value, given := strings.Cut(strings.Trim(arg, `'"`), "=")
		return name == flag && (!given || value == "true" || value == "1")
	})
}
