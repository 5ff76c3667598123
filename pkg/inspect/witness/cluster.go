package witness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// ClusterInventory is the apiserver's answer, with the signs that its list is current and belongs to this node.
type ClusterInventory struct {
	Response
	Pods         map[string]PodFact // by UID, in every phase
	OnOtherNodes []string           // pods in the list that are on another node
	Comparison
	again map[string]PodFact // becomes KubeletInventory.Again

	Node    string // name of the Node object
	Machine string // its machineID
	Boot    string // its bootID
	Version string // its kubelet's
	NodeErr error  `json:"-"`

	VolumesInUse []string // as its status names them

	LocalMachine string // /etc/machine-id
	LocalBoot    string // /proc/sys/kernel/random/boot_id
	LocalErr     error  `json:"-"`
}

// Comparison holds the mutual proofs of the apiserver's list and one answer of kubelet's /pods: the one before it, or
// the one right after it (see compareAgain). Static pods are no proof: kubelet has them without the apiserver, and
// creates their mirrors there itself.
type Comparison struct {
	Shared  int // pods of the list that kubelet has from the apiserver
	Wanted  int // pods of kubelet's that it must have from the apiserver,
	Missing int // and how many of them are not in the list

	Listed int      // pods of the list that have not ended, which kubelet must have from the apiserver,
	Lacked int      // and how many of them kubelet lacks
	Proven []string // those that kubelet lacks although it knew them: they run, or it has set their status
}

// askCluster lists the node's pods and gets its Node object, after all other questions.
func askCluster(ctx context.Context, scan *hostscan.Scan, t *Inventory, s object.Settings) ClusterInventory {
	h := scan.Host
	c := ClusterInventory{Response: Response{Asked: true, At: h.Clock()}}
	pods, err := host.Ask(ctx, "apiserver", h.Cluster.Pods)
	if c.Err = err; err != nil {
		return c
	}
	c.Pods = podFacts(pods, scan.OptOut)
	for _, pod := range pods {
		if pod.Spec.NodeName != h.NodeName {
			c.OnOtherNodes = append(c.OnOtherNodes, fmt.Sprintf("%s/%s on %q", pod.Namespace, pod.Name,
				pod.Spec.NodeName))
		}
	}
	c.Comparison = t.Comparison(c.Pods)
	if c.disagrees(s) {
		c.compareAgain(ctx, scan, t) // at once, before more pods have ended
	}
	node, err := host.Ask(ctx, "apiserver", h.Cluster.Node)
	if c.NodeErr = err; err == nil {
		c.Node, c.Version = node.Name, node.Status.NodeInfo.KubeletVersion
		c.Machine, c.Boot = node.Status.NodeInfo.MachineID, node.Status.NodeInfo.BootID
		for _, name := range node.Status.VolumesInUse {
			c.VolumesInUse = append(c.VolumesInUse, string(name))
		}
	}
	c.LocalMachine, c.LocalBoot, c.LocalErr = machine(h.Files)
	return c
}

// Compare compares the apiserver's list with kubelet's. Kubelet was asked first, so it may not have received a pod of
// the list yet, unless there is a sign that it had.
func Compare(list, kubelet map[string]PodFact, running map[string]bool) Comparison {
	var c Comparison
	for uid, pod := range kubelet {
		if pod.Static {
			continue // its mirror comes late, or never
		}
		c.Wanted++
		if known, ok := list[uid]; !ok {
			c.Missing++
		} else if !known.Mirror {
			c.Shared++
		}
	}
	for uid, pod := range list {
		ended := pod.Phase == string(corev1.PodSucceeded) || pod.Phase == string(corev1.PodFailed)
		if pod.Mirror || ended && !running[uid] {
			continue
		}
		c.Listed++
		if HasPod(kubelet, uid) {
			continue
		}
		c.Lacked++
		if running[uid] || pod.Started {
			c.Proven = append(c.Proven, pod.Namespace+"/"+pod.Name)
		}
	}
	slices.Sort(c.Proven)
	return c
}

// LacksMost reports whether kubelet lacks more of the list than it has.
func (c Comparison) LacksMost() bool { return 2*c.Lacked > c.Listed }

// Outdated reports whether the list lacks many of kubelet's pods.
func (c Comparison) Outdated(s object.Settings) bool {
	return c.Missing > max(s.MassOrphaning, c.Wanted*s.MassPercent/100)
}

// disagrees reports whether kubelet, or the list, lacks pods that the other shows it must have.
func (c Comparison) disagrees(s object.Settings) bool {
	return len(c.Proven) > 0 || c.LacksMost() || c.Outdated(s)
}

// compareAgain asks kubelet once more. On a busy node, some pods start or end between kubelet's answer and the list,
// for which the agent may have had to wait. That looks as if kubelet had not received its pods, or as if the list were
// outdated. The second answer replaces the first in the comparison if it comes from the process whose uptime is known:
// another one may have received no pods yet. The two do not excuse each other: a pod that either of them lacks is not
// made up for by the other, and the gates demand of the second what they demand of a single one.
//
// A pod in either answer is kubelet's in any case. So a denied pod is denied by an answer that agrees with the list, as
// always, and by another one besides.
func (c *ClusterInventory) compareAgain(ctx context.Context, scan *hostscan.Scan, t *Inventory) {
	if !t.Kubelet.OK() || t.Kubelet.ByName() { // names are compared with the lists of earlier passes, too
		return
	}
	pods, err := host.Ask(ctx, "kubelet", scan.Host.Kubelet.Pods)
	if err != nil {
		return
	}
	c.again = podFacts(pods, scan.OptOut)
	first, err := scan.Kubelet()
	if err != nil {
		return
	}
	now, err := scan.Host.Kubelet.Process()
	if err != nil || now.PID != first.PID || now.StartTime != first.StartTime {
		return
	}
	c.Comparison = Compare(c.Pods, c.again, t.Runtime.Running)
}

// machine returns the IDs of this machine as kubelet reads them: the first of two files that can be read, even an
// empty one.
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

// StaticPodInventory holds the static pods by their manifests.
type StaticPodInventory struct {
	Asked   bool
	Err     error             `json:"-"` // they could not be read
	Missing []string          // manifests whose pod kubelet does not have, as namespace/name
	UIDs    map[string]string // manifests by the UID that they set for their pod
}

// ReadManifests compares the manifests in kubelet's directory of static pods with its /pods. Kubelet computes the UID
// of such a pod as a hash over data not fully known here. Only this can be proven: if each manifest has its pod, a UID
// that kubelet does not have belongs to no manifest.
func ReadManifests(scan *hostscan.Scan, kubelet map[string]PodFact) StaticPodInventory {
	dir := scan.Host.Paths.StaticPods
	inventory := StaticPodInventory{Asked: true, UIDs: make(map[string]string)}
	if dir == "" {
		inventory.Err = errors.New("kubelet's directory of static pods is not known")
		return inventory
	}
	names, err := scan.Host.Files.List(dir)
	if err != nil {
		inventory.Err = err
		return inventory
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
			continue // kubelet ignores them too
		}
		pod, err := manifestPod(scan.Host, path.Join(dir, name))
		if err != nil {
			inventory.Err = errors.Join(inventory.Err, err) // go on with the other manifests: they may name a UID
			continue
		}
		if pod.Name == "" {
			continue
		}
		if fullName := pod.Namespace + "/" + pod.Name; !static[fullName] {
			inventory.Missing = append(inventory.Missing, fullName)
		}
		if pod.UID != "" {
			inventory.UIDs[pod.UID] = path.Join(dir, name)
		}
	}
	return inventory
}

// MaxManifest bounds a manifest.
const MaxManifest = 1 << 20

// manifestPod returns the static pod that kubelet creates from a manifest: it adds the node's name. The UID is the one
// in the manifest, if any. The result is empty for a directory.
func manifestPod(h *host.Host, file string) (object.Pod, error) {
	stat, err := h.Files.Stat(file)
	if err != nil {
		return object.Pod{}, err
	}
	if stat.IsDir() {
		return object.Pod{}, nil
	}
	if !stat.IsFile() || stat.Size > MaxManifest {
		return object.Pod{}, fmt.Errorf("read %s: not a regular file of at most %d bytes", file, MaxManifest)
	}
	data, err := h.Files.Read(file)
	if err != nil {
		return object.Pod{}, err
	}
	var manifest metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(data, &manifest); err != nil {
		return object.Pod{}, fmt.Errorf("read %s: %w", file, err)
	}
	if manifest.Name == "" {
		return object.Pod{}, fmt.Errorf("read %s: no pod name", file)
	}
	return object.Pod{
		UID:       string(manifest.UID),
		Namespace: cmp.Or(manifest.Namespace, metav1.NamespaceDefault),
		Name:      manifest.Name + "-" + strings.ToLower(h.NodeName),
	}, nil
}
