package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// gate is a Gate and what it means for an object when it is closed: unknown where a witness could not be heard or
// believed, candidate where one has to wait.
type gate struct {
	Gate
	unknown bool
	network bool // holds for network objects only
}

// openGate, closed and deaf make gates: deaf is closed because something could not be learnt.
func openGate(name, format string, args ...any) gate {
	return gate{Gate: Gate{Name: name, Open: true, Why: fmt.Sprintf(format, args...)}}
}

func closedGate(name, format string, args ...any) gate {
	return gate{Gate: Gate{Name: name, Why: fmt.Sprintf(format, args...)}}
}

func unknownGate(name, format string, args ...any) gate {
	g := closedGate(name, format, args...)
	g.unknown = true
	return g
}

// notNeeded is why the apiserver is not asked most of the time.
const notNeeded = "not asked: nothing is suspicious"

// nothingSuspicious reports whether there was nothing to ask the apiserver for.
func nothingSuspicious(t *Inventory, orphans int) bool {
	return orphans == 0 && !t.Cluster.Asked && t.Kubelet.OK()
}

// gates are all conditions on the whole node, always in the same order. orphans is the number of pods that no witness
// knows but that have objects on the node; stuck are those of them that kubelet cannot get rid of.
// contrary are pods that the apiserver has when it is asked for them by name, while its list lacks them.
func gates(t *Inventory, s Settings, orphans, stuck int, missingFromList []string) []gate {
	network := conditionGate("network-ready", t.Runtime, t.Runtime.NetReady)
	network.network = true
	return []gate{
		kubeletAnswers(t),
		uptimeGate("kubelet-uptime", "kubelet", t.Kubelet.Age, t.Kubelet.AgeErr, s.KubeletUptime),
		kubeletNotWorking(t, orphans, stuck),
		runtimeAnswers(t),
		uptimeGate("runtime-uptime", "the runtime", t.Runtime.Age, t.Runtime.AgeErr, s.RuntimeUptime),
		conditionGate("runtime-ready", t.Runtime, t.Runtime.Ready),
		network,
		hostNamespaces(s),
		noOtherKubelet(t),
		noMassOrphaning(t, s, orphans),
		apiserverAnswers(t, orphans),
		listIsOurs(t, s, orphans, missingFromList),
		kubeletSources(t, orphans),
		nodeIdentity(t, orphans),
	}
}

func kubeletAnswers(t *Inventory) gate {
	const name = "kubelet-heard"
	if !t.Kubelet.OK() {
		return unknownGate(name, "kubelet's /pods: %v", responseError(t.Kubelet.Response))
	}
	return openGate(name, "kubelet has %d pods", countPods(t.Kubelet.Pods))
}

func responseError(h Response) error {
	if !h.Asked {
		return errors.New("not asked")
	}
	return h.Err
}

func uptimeGate(name, who string, age time.Duration, err error, least time.Duration) gate {
	switch {
	case least <= 0:
		return openGate(name, "not required")
	case err != nil:
		return unknownGate(name, "its process: %v", err)
	case age < least:
		return closedGate(name, "%s has been up for %s of %s", who, round(age), round(least))
	}
	return openGate(name, "%s has been up for %s", who, round(age))
}

// kubeletNotWorking is closed while kubelet still ends pods that have left its list. A kubelet older than v1.27 does
// not count them: there the grace period, which is never shorter than that of the pod's containers, must be enough.
// One that is not proven to be older has not begun to count: it waits for a source of its pods. Kubelet tries for
// ever to end a pod whose processes do not die; that is no reason to wait for ever.
func kubeletNotWorking(t *Inventory, orphans, stuck int) gate {
	const name = "kubelet-not-working"
	switch k := t.Kubelet; {
	case nothingSuspicious(t, orphans):
		return openGate(name, notNeeded)
	case errors.Is(k.WorkingErr, errNoMetric):
		if why := notOld(k.Version, t.Cluster.Version); why != "" {
			return unknownGate(name, "%v, and %s", k.WorkingErr, why)
		}
		return openGate(name, "%v: left to the grace period", k.WorkingErr)
	case k.WorkingErr != nil:
		return unknownGate(name, "%s: %v", workingFamily, k.WorkingErr)
	case k.Working > 0 && k.Working <= stuck:
		return openGate(name, "kubelet has been ending %d pods for twice the grace period and cannot", k.Working)
	case k.Working > 0:
		return closedGate(name, "kubelet is still ending %d pods that are no longer wanted", k.Working)
	}
	return openGate(name, "kubelet is ending no pod that is no longer wanted")
}

// kubeletSources is open when kubelet shows that it has read what the apiserver wants of it. After a start while its
// own LIST is refused its /pods has the static pods only, and looks like the list of a node that was emptied.
func kubeletSources(t *Inventory, orphans int) gate {
	const name = "kubelet-sources"
	c := &t.Cluster
	own, listed := c.Pods[t.Own]
	switch {
	case nothingSuspicious(t, orphans):
		return openGate(name, notNeeded)
	case !t.Kubelet.OK():
		return unknownGate(name, "kubelet could not be heard")
	case !c.OK():
		return unknownGate(name, "there is no list of the apiserver's to hold kubelet's against")
	case listed && !own.Mirror && !hasPod(t.Kubelet.Pods, t.Own):
		return unknownGate(name, "kubelet lacks the agent's own pod %s, which the apiserver lists", t.Own)
	case len(c.Proven) > 0:
		return unknownGate(name, "kubelet lacks pods that the apiserver lists and that it has known: %s",
			firstThree(c.Proven))
	case 2*c.Lacked > c.Listed:
		return unknownGate(name, "kubelet lacks %d of %d pods that the apiserver lists", c.Lacked, c.Listed)
	}
	ordinary := 0
	for _, pod := range t.Kubelet.Pods {
		if !pod.Static {
			ordinary++
		}
	}
	if others := othersRunning(t); ordinary == 0 && len(others) > 0 {
		return unknownGate(name, "kubelet has no pod from the apiserver, while the runtime runs %s", firstThree(others))
	}
	return openGate(name, "kubelet has %d of %d pods that the apiserver lists", c.Listed-c.Lacked, c.Listed)
}

func hasPod(pods map[string]PodFact, uid string) bool { _, ok := pods[uid]; return ok }

// firstThree names the first of many.
func firstThree(names []string) string {
	if len(names) <= 3 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
}

// othersRunning names the pods that the runtime runs and kubelet lacks, but for static ones.
func othersRunning(t *Inventory) []string {
	var names []string
	for uid := range t.Runtime.Running {
		pod := t.Runtime.Pods[uid]
		if !hasPod(t.Kubelet.Pods, uid) && len(uid) != 32 && (pod.Source == "" || pod.Source == "api") {
			names = append(names, cmp.Or(strings.Trim(pod.Namespace+"/"+pod.Name, "/"), uid))
		}
	}
	slices.Sort(names)
	return names
}

func runtimeAnswers(t *Inventory) gate {
	const name = "runtime-heard"
	switch {
	case !t.Runtime.OK():
		return unknownGate(name, "the runtime's lists: %v", responseError(t.Runtime.Response))
	case t.Containerd.Other == "" && !t.Containerd.OK():
		return unknownGate(name, "containerd's lists: %v", responseError(t.Containerd.Response))
	}
	return openGate(name, "the runtime has %d sandboxes and %d containers", len(t.Runtime.Sandboxes),
		len(t.Runtime.Containers))
}

func conditionGate(name string, r RuntimeInventory, c Condition) gate {
	if !r.OK() {
		return unknownGate(name, "the runtime could not be heard")
	}
	return gate{Gate: Gate{Name: name, Open: c.OK, Why: c.Why}}
}

func hostNamespaces(s Settings) gate {
	const name = "host-namespaces"
	if !s.HostNamespaces {
		return unknownGate(name, "the agent does not see all processes of the host")
	}
	return openGate(name, "the agent sees the host's processes")
}

// noMassOrphaning is the breaker: many pods that vanish at once are rather a witness in error than leftovers.
func noMassOrphaning(t *Inventory, s Settings, orphans int) gate {
	const name = "no-mass-orphaning"
	all := orphans + countPods(t.Kubelet.Pods, t.Cluster.Pods)
	if most := max(s.MassOrphaning, all*s.MassPercent/100); orphans > most {
		return closedGate(name, "%d of %d pods are known to no witness, more than %d: rather a witness is wrong",
			orphans,
			all, most)
	}
	return openGate(name, "%d of %d pods are known to no witness", orphans, all)
}

// countPods returns how many pods there are; a static pod is known by two UIDs.
func countPods(known ...map[string]PodFact) int {
	uids := make(map[string]bool)
	for _, pods := range known {
		for _, pod := range pods {
			uids[pod.UID] = true
		}
	}
	return len(uids)
}

func apiserverAnswers(t *Inventory, orphans int) gate {
	const name = "apiserver-heard"
	switch {
	case t.Cluster.OK():
		return openGate(name, "it lists %d pods of this node", countPods(t.Cluster.Pods))
	case nothingSuspicious(t, orphans):
		return openGate(name, notNeeded)
	}
	return unknownGate(name, "the apiserver's list of pods: %v", responseError(t.Cluster.Response))
}

// listIsOurs is open when something proves that the list is of this node and not empty by mistake: our own pod, or one
// that kubelet has from the apiserver. A list that lacks many of kubelet's pods is an old one.
func listIsOurs(t *Inventory, s Settings, orphans int, missingFromList []string) gate {
	const name = "list-is-ours"
	c := &t.Cluster
	own, listed := c.Pods[t.Own]
	switch {
	case nothingSuspicious(t, orphans):
		return openGate(name, notNeeded)
	case !c.OK():
		return unknownGate(name, "there is no list")
	case len(c.OnOtherNodes) > 0:
		return unknownGate(name, "the list has pods of other nodes: %s", firstThree(c.OnOtherNodes))
	case len(missingFromList) > 0:
		return unknownGate(name, "the list lacks pods that the apiserver has when asked for them by name: %s",
			firstThree(missingFromList))
	case t.Own != "" && !listed:
		return unknownGate(name, "the list lacks the agent's own pod %s", t.Own)
	case c.Shared == 0 && (!listed || own.Mirror):
		return unknownGate(name, "none of kubelet's pods is in the list but static ones, whose mirrors kubelet makes "+
			"itself: an empty or foreign list proves nothing")
	case c.Missing > max(s.MassOrphaning, c.Wanted*s.MassPercent/100):
		return unknownGate(name, "the list lacks %d of %d pods that kubelet has from the apiserver", c.Missing,
			c.Wanted)
	}
	return openGate(name, "%d of kubelet's pods from the apiserver are in the list", c.Shared)
}

// nodeIdentity is open when the Node object is of this very machine and boot, and not of another one by the same
// name. Its Lease is not looked at: that kubelet is alive is told by kubelet.
func nodeIdentity(t *Inventory, orphans int) gate {
	const name = "node-identity"
	switch c := &t.Cluster; {
	case nothingSuspicious(t, orphans):
		return openGate(name, notNeeded)
	case !c.OK():
		return unknownGate(name, "the apiserver could not be heard")
	case c.NodeErr != nil:
		return unknownGate(name, "the Node object: %v", c.NodeErr)
	case c.LocalErr != nil:
		return unknownGate(name, "the IDs of this machine: %v", c.LocalErr)
	case c.LocalBoot == "" || c.Boot != c.LocalBoot:
		return unknownGate(name, "Node %s has bootID %q, this machine %q", c.Node, c.Boot, c.LocalBoot)
	case c.Machine != c.LocalMachine:
		return unknownGate(name, "Node %s has machineID %q, this machine %q", c.Node, c.Machine, c.LocalMachine)
	}
	return openGate(name, "machineID and bootID of Node %s are this machine's", t.Cluster.Node)
}

// round makes a duration short enough to read.
func round(d time.Duration) time.Duration { return d.Round(time.Second) }

// sameBoot reports whether two moments can be compared.
func sameBoot(a, b finding.Timestamp) bool { return a.Boot == b.Boot }
