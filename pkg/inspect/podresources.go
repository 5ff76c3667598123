package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// Kubelet lets a node's own identity read neither its /pods nor its metrics. Then its podresources socket is asked
// instead, which needs no credentials (see kubelet.PodNames). It is a weaker witness, so the proof needs more:
//
//   - It names pods and has no UIDs. A missing name is a denial; a present name denies a pod only if the apiserver
//     lists another pod of that name, which kubelet is proven to have. A pod without a name is not denied until this is
//     so for every name.
//   - It does not show which force-deleted pods kubelet is still terminating. So a pod with a running container is
//     never a leftover, and an object must be seen for twice the grace period after the last of them ended, or three
//     times if the pod has no name. The apiserver must deny it over a whole grace period, and kubelet must be healthy
//     if its metrics are refused, too.
//   - It does not show the UIDs of static pods: theirs are unknown.
//   - Since 1.34 it lacks pods that have ended. So that not the apiserver's list alone denies those, the UID must not
//     be in allocatedPods either.
//
// The last list of the apiserver counts for pods that have ended, so that a node with completed pods costs no list in
// every pass.

// Unsure is the answer of a witness that answered, but cannot tell whether it means this pod. Details follow.
const Unsure Answer = "cannot tell"

// allocatedPods is kubelet's record of the pods that it has admitted, ended and static ones too, by UID, in kubelet's
// root directory (pkg/kubelet/allocation; in place resizing, on by default since 1.33). It is written when a pod is
// admitted: one that is removed stays in it until then. It is only searched for UIDs, whatever its form:
//
//	{"data":"{\"entries\":{\"UID\":{\"ContainerResources\":{\"NAME\":{}}}}}","checksum":1}
const allocatedPods = "allocated_pods_state"

// withoutEnded is the first kubelet version whose podresources lack pods that have ended.
var withoutEnded = version.MajorMinor(1, 34)

// The weaker witness needs multiples of the grace period, for a pod with a name and for one without.
const (
	namedPatience    = 2
	namelessPatience = 3
)

// namedPods holds the facts about the pods of one name.
type namedPods struct {
	times int      // how often kubelet lists the name
	ready []string // UIDs with a READY sandbox of that name
	has   string   // UID of the pod in the apiserver's list that kubelet is proven to mean, or ""
}

// byName reports whether kubelet has given names only.
func (k *KubeletInventory) byName() bool { return k.Names != nil }

// uncounted reports whether kubelet also refuses to tell which pods it works on.
func (k *KubeletInventory) uncounted() bool {
	return k.byName() && errors.Is(k.WorkingErr, fs.ErrPermission)
}

// askNames asks the podresources socket if /pods is refused. If kubelet does not answer in time, it is not asked: it is
// sick.
func (k *KubeletInventory) askNames(ctx context.Context, h *host.Host) {
	if !errors.Is(k.Err, fs.ErrPermission) || h.Kubelet.PodNames == nil {
		return
	}
	names, err := h.Kubelet.PodNames(ctx)
	if err != nil {
		k.Err = fmt.Errorf("%w; nor do its podresources answer: %w", k.Err, err)
		return
	}
	k.Names, k.Refused, k.Err = names, k.Err, nil
	if names == nil {
		k.Names = make(map[string]int)
	}
}

// resolveNames finds out which UIDs kubelet's names mean, as far as the runtime and the apiserver's list show it.
func (t *Inventory) resolveNames() {
	k := &t.Kubelet
	if !k.byName() {
		return
	}
	k.Pods, k.named, k.unproven = make(map[string]PodFact), make(map[string]namedPods), ""
	for name, times := range k.Names {
		k.named[name] = namedPods{times: times}
	}
	for uid, s := range t.Runtime.Pods {
		n, known := k.named[fullName(s.Pod)]
		if !known || s.State != "READY" || t.Runtime.Misnamed[uid] {
			continue
		}
		n.ready = append(n.ready, uid)
		k.named[fullName(s.Pod)] = n
		k.Pods[uid] = PodFact{Pod: s.Pod, Static: isStaticSource(s.Source)}
	}
	if t.Cluster.OK() {
		t.resolveListed()
	}
	for _, name := range slices.Sorted(maps.Keys(k.named)) {
		if k.named[name].has == "" && k.unproven == "" {
			k.unproven = name
		}
	}
}

// resolveListed finds kubelet's pods in the apiserver's list. Kubelet certainly has a listed pod if it has made a
// sandbox for it or set its status; it receives pods in order, so an older pod of that name is gone from kubelet.
func (t *Inventory) resolveListed() {
	k := &t.Kubelet
	for uid, pod := range t.Cluster.Pods {
		n, known := k.named[fullName(pod.Pod)]
		if !known || uid != pod.UID { // a mirror is there by both its UIDs
			continue
		}
		if n.times == 1 && (pod.Started || slices.Contains(n.ready, uid)) {
			n.has = uid
			k.named[fullName(pod.Pod)] = n
			for _, old := range n.ready {
				delete(k.Pods, old)
			}
		}
		pod.Static = pod.Mirror
		k.Pods[uid] = pod
	}
}

func fullName(p Pod) string { return p.Namespace + "/" + p.Name }

func isStaticSource(source string) bool { return source != "" && source != "api" }

// answerByName is kubelet's answer if only names are known. A list of the apiserver older than first, when o was first
// seen, shows no facts about o.
func (t *Inventory) answerByName(o *Object, first finding.Timestamp) Answer {
	k, pod := &t.Kubelet, o.Pod
	listed, isListed := t.Cluster.Pods[pod.UID]
	if isListed && t.Cluster.OK() {
		pod = listed.Pod
	}
	n := k.named[fullName(pod)]
	switch {
	case t.Runtime.Misnamed[pod.UID]:
		return Unsure + ": its sandboxes have different pod names"
	case pod.Name == "" || pod.Namespace == "":
		return t.answerNameless(first)
	case n.times == 0:
		return Denies
	case isListed || len(n.ready) == 1 && n.ready[0] == pod.UID && (n.has == "" || t.Cluster.older(first)):
		return knows("%s, by name", fullName(pod))
	case n.has != "" && n.has != pod.UID && !t.Cluster.older(first):
		return Denies
	}
	return Unsure + Answer(": it has a pod "+fullName(pod)+", and nothing shows that it is another one")
}

// answerNameless is kubelet's answer about a pod without a known name.
func (t *Inventory) answerNameless(first finding.Timestamp) Answer {
	switch {
	case !t.Cluster.OK() || t.Cluster.older(first):
		return Unsure + ": the name of its pod is not known, and the apiserver has not been asked since it was first seen"
	case t.Kubelet.unproven != "":
		return Unsure + Answer(": the name of its pod is not known, and nothing shows which pod "+t.Kubelet.unproven+
			" of kubelet's is")
	}
	return Denies
}

// older reports whether the list was requested before first, or not in the same boot.
func (c *ClusterInventory) older(first finding.Timestamp) bool {
	return first.Boot != c.At.Boot || c.At.SinceBoot < first.SinceBoot
}

// comparison compares the apiserver's list with kubelet's answer.
func (t *Inventory) comparison(list map[string]PodFact) Comparison {
	if t.Kubelet.byName() {
		return t.compareNames(list)
	}
	return compare(list, t.Kubelet.Pods, t.Runtime.Running)
}

// compareNames compares like compare. Only the UID of a sandbox that kubelet had made for one of its pods shows that
// the list is this node's: a name alone may be another node's, too.
func (t *Inventory) compareNames(list map[string]PodFact) Comparison {
	var c Comparison
	listed := make(map[string]bool)
	sandboxes, static := make(map[string]bool), make(map[string]bool)
	for uid, s := range t.Runtime.Pods {
		sandboxes[fullName(s.Pod)+"/"+uid] = !t.Runtime.Misnamed[uid]
		static[fullName(s.Pod)] = static[fullName(s.Pod)] || isStaticSource(s.Source)
	}
	shared := make(map[string]bool)
	for uid, pod := range list {
		name := fullName(pod.Pod)
		static[name] = static[name] || pod.Mirror
		listed[name] = true
		shared[name] = shared[name] || !pod.Mirror && sandboxes[name+"/"+uid]
		ended := pod.Phase == string(corev1.PodSucceeded) || pod.Phase == string(corev1.PodFailed)
		if pod.Mirror || ended && !t.Runtime.Running[uid] {
			continue
		}
		c.Listed++
		if t.Kubelet.Names[name] > 0 {
			continue
		}
		c.Lacked++
		if t.Runtime.Running[uid] || pod.Started {
			c.Proven = append(c.Proven, name)
		}
	}
	for name := range t.Kubelet.Names {
		switch {
		case static[name]:
			continue
		case shared[name]:
			c.Shared++
		case !listed[name]:
			c.Missing++
		}
		c.Wanted++
	}
	slices.Sort(c.Proven)
	return c
}

// recent returns the last list of the apiserver, if it may still count for pods that have ended.
func (i *Inspector) recent(now finding.Timestamp) ClusterInventory {
	if last := i.cluster; last.OK() && sameBoot(last.At, now) && now.Since(last.At) < recheck {
		return last
	}
	return ClusterInventory{}
}

// doubtByName returns why an object is not proven although kubelet's names do not include its pod.
func (e *evaluation) doubtByName(o *Object, witnesses map[string]Answer) string {
	switch {
	case !e.inventory.Kubelet.byName():
		return ""
	case e.inventory.Runtime.Running[o.Pod.UID]:
		return "it is running, and only kubelet's /pods would show whether kubelet is still terminating it"
	case witnesses[Kubelet] != Denies:
		return "kubelet " + string(witnesses[Kubelet])
	}
	if why := e.inventory.mayHaveEnded(o.Pod.UID); why != "" {
		return "it may be a pod that has ended, which kubelet's podresources lack: " + why
	}
	return ""
}

// mayHaveEnded returns why kubelet may have a pod that its podresources lack because it has ended.
func (t *Inventory) mayHaveEnded(uid string) string {
	if v, err := version.ParseGeneric(t.Cluster.Version); err == nil && v.LessThan(withoutEnded) {
		return ""
	}
	record := t.Kubelet.Record
	switch {
	case t.Kubelet.RecordErr != nil:
		return fmt.Sprintf("kubelet's record of its pods: %v", t.Kubelet.RecordErr)
	case strings.Contains(record, uid):
		return "kubelet's " + allocatedPods + " still names it; that is written when the next pod is admitted"
	}
	for _, name := range slices.Sorted(maps.Keys(t.Kubelet.named)) {
		if has := t.Kubelet.named[name].has; has != "" && len(has) != 32 && !strings.Contains(record, has) {
			return "kubelet's " + allocatedPods + " is not current: it lacks the pod " + name
		}
	}
	return ""
}

func readAllocated(h *host.Host) (string, error) {
	data, err := h.Files.Read(path.Join(h.Paths.KubeletRoot, allocatedPods))
	return string(data), err
}

// patience returns for how many grace periods an object must be seen, and how far apart the apiserver's first and last
// denial must be.
func patience(o *Object, t *Inventory, s Settings) (periods, spacing time.Duration) {
	switch {
	case !t.Kubelet.byName():
		return 1, s.ListSpacing
	case o.Pod.Name == "":
		return namelessPatience, max(s.ListSpacing, s.Grace)
	}
	return namedPatience, max(s.ListSpacing, s.Grace)
}

// notes tells which proof this pass could give, and how to get a better one.
func notes(t *Inventory) []string {
	if !t.Kubelet.byName() {
		return nil
	}
	return []string{fmt.Sprintf("kubelet refuses its /pods, and its podresources are asked instead: proof takes at least "+
		"twice as long, and nothing of a static pod, or of one with a container that runs, is proven. For the full proof "+
		"the agent needs the right to read nodes/pods and nodes/metrics. Refused: %v", t.Kubelet.Refused)}
}

// stillGoneByName is StillGone if kubelet gives names only. If the name alone is no denial, the apiserver's list is
// read again.
func stillGoneByName(ctx context.Context, scan *hostscan.Scan, t Inventory, pod Pod) error {
	o, first := &Object{Pod: pod}, scan.Host.Clock()
	if t.Runtime = askRuntime(ctx, scan); t.Runtime.Err != nil {
		return fmt.Errorf("ask the runtime for pod %s again: %w", pod.UID, t.Runtime.Err)
	}
	if t.Runtime.Running[pod.UID] {
		return fmt.Errorf("pod %s runs again", pod.UID)
	}
	t.resolveNames()
	answer := t.kubeletAnswer(o, first)
	if answer != Denies {
		t.Cluster = askCluster(ctx, scan, &t, Settings{})
		t.resolveNames()
		if listed := t.apiserverAnswer(o, first); listed != Denies {
			return fmt.Errorf("ask the apiserver for pod %s again: %s", pod.UID, listed)
		}
		answer = t.kubeletAnswer(o, first)
	}
	if answer != Denies {
		return fmt.Errorf("ask kubelet for pod %s again: %s", pod.UID, answer)
	}
	if record, err := readAllocated(scan.Host); err == nil && strings.Contains(record, pod.UID) {
		return fmt.Errorf("kubelet's %s names pod %s again", allocatedPods, pod.UID)
	}
	return nil
}
