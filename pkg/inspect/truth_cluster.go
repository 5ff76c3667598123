package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/internal/host"
)

// ClusterTruth is what the apiserver says, and what shows whether its list is one of this node, and fresh.
type ClusterTruth struct {
	Heard
	Pods      map[string]PodFact // by UID, in every phase
	Strangers []string           // pods in the list that are on another node
	Shared    int                // pods that kubelet has, too
	Wanted    int                // pods of kubelet's that it must have from the apiserver,
	Missing   int                // and how many of them the list lacks

	Node    string // name of the Node object
	Machine string // its machineID
	Boot    string // its bootID
	NodeErr error

	LocalMachine string // /etc/machine-id
	LocalBoot    string // /proc/sys/kernel/random/boot_id
	LocalErr     error
}

// askCluster lists the node's pods and gets its Node object, after everything else was asked.
func askCluster(ctx context.Context, scan *Scan, kubelet map[string]PodFact) ClusterTruth {
	h := scan.Host
	c := ClusterTruth{Heard: Heard{Asked: true, At: h.Clock()}}
	pods, err := ask(ctx, "apiserver", h.Cluster.Pods)
	if c.Err = err; err != nil {
		return c
	}
	c.Pods = podFacts(pods)
	for _, pod := range pods {
		if pod.Spec.NodeName != h.NodeName {
			c.Strangers = append(c.Strangers, fmt.Sprintf("%s/%s on %q", pod.Namespace, pod.Name, pod.Spec.NodeName))
		}
	}
	c.compare(kubelet)
	node, err := ask(ctx, "apiserver", h.Cluster.Node)
	if c.NodeErr = err; err == nil {
		c.Node, c.Machine, c.Boot = node.Name, node.Status.NodeInfo.MachineID, node.Status.NodeInfo.BootID
	}
	c.LocalMachine, c.LocalBoot, c.LocalErr = machine(h.Files)
	return c
}

// compare holds the list against kubelet's.
func (c *ClusterTruth) compare(kubelet map[string]PodFact) {
	for uid, pod := range kubelet {
		_, listed := c.Pods[uid]
		if listed {
			c.Shared++
		}
		if pod.Static {
			continue // its mirror comes late, or never
		}
		c.Wanted++
		if !listed {
			c.Missing++
		}
	}
}

// machine returns the IDs of this machine as kubelet reads them: the first of two files that can be read, even an empty one.
func machine(files host.Files) (machine, boot string, err error) {
	machine, err = files.Text("/etc/machine-id")
	if err != nil {
		machine, err = files.Text("/var/lib/dbus/machine-id")
	}
	if errors.Is(err, fs.ErrNotExist) {
		machine, err = "", nil
	}
	if err != nil {
		return "", "", err
	}
	boot, err = files.Text("/proc/sys/kernel/random/boot_id")
	return machine, boot, err
}

// StaticTruth is what the manifests of static pods say.
type StaticTruth struct {
	Asked   bool
	Err     error    // they could not be read
	Missing []string // manifests whose pod kubelet does not have, as namespace/name
}

// readManifests holds the manifests in kubelet's directory for static pods against its /pods. The UID that kubelet makes
// up for one is a hash of things that cannot all be known here, so that only this is provable: when each manifest has
// its pod, a UID which kubelet does not have is of no manifest.
func readManifests(scan *Scan, kubelet map[string]PodFact) StaticTruth {
	dir := scan.Host.Paths.StaticPods
	truth := StaticTruth{Asked: true}
	if dir == "" {
		truth.Err = errors.New("kubelet's directory of static pods is not known")
		return truth
	}
	names, err := scan.Host.Files.List(dir)
	if err != nil {
		truth.Err = err
		return truth
	}
	static := make(map[string]bool)
	for _, pod := range kubelet {
		if pod.Static {
			static[pod.Namespace+"/"+pod.Name] = true
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			continue // kubelet ignores them, too
		}
		pod, err := manifestPod(scan.Host, path.Join(dir, name))
		if err != nil {
			truth.Err = err
			return truth
		}
		if pod != "" && !static[pod] {
			truth.Missing = append(truth.Missing, pod)
		}
	}
	return truth
}

// maxManifest bounds a manifest.
const maxManifest = 1 << 20

// manifestPod returns namespace/name of the static pod that kubelet makes of a manifest: it adds the node's name. Empty
// for what is no file.
func manifestPod(h *host.Host, file string) (string, error) {
	stat, err := h.Files.Stat(file)
	if err != nil {
		return "", err
	}
	if stat.IsDir() {
		return "", nil
	}
	if !stat.IsFile() || stat.Size > maxManifest {
		return "", fmt.Errorf("read %s: no file of at most %d bytes", file, maxManifest)
	}
	data, err := h.Files.Read(file)
	if err != nil {
		return "", err
	}
	var manifest metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(data, &manifest); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	if manifest.Name == "" {
		return "", fmt.Errorf("read %s: names no pod", file)
	}
	namespace := manifest.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return namespace + "/" + manifest.Name + "-" + strings.ToLower(h.NodeName), nil
}
