package verdict

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// gate is a Gate with the verdict on objects while it is closed: unknown if a witness did not answer or cannot be
// trusted, otherwise candidate.
type gate struct {
	object.Gate
	unknown bool
	network bool // applies to network objects only
}

// openGate, closedGate and unknownGate make gates: an unknownGate is closed because a source could not be read.
func openGate(name, format string, args ...any) gate {
	return gate{Gate: object.Gate{Name: name, Open: true, Why: fmt.Sprintf(format, args...)}}
}

func closedGate(name, format string, args ...any) gate {
	return gate{Gate: object.Gate{Name: name, Why: fmt.Sprintf(format, args...)}}
}

func unknownGate(name, format string, args ...any) gate {
	g := closedGate(name, format, args...)
	g.unknown = true
	return g
}

// notNeeded is the usual reason for not asking the apiserver.
const notNeeded = "not asked: nothing is suspicious"

// nothingSuspicious reports whether there was no reason to ask the apiserver.
func nothingSuspicious(t *witness.Inventory, orphans int) bool {
	return orphans == 0 && !t.Cluster.Asked && t.Kubelet.OK()
}

// gates returns all conditions on the whole node, always in the same order. orphans is the number of pods that have
// objects on the node but that no witness knows; ended is how many of them kubelet is about to remove, stuck how many
// it cannot remove. missingFromList are pods that the apiserver returns by name although its list lacks them.
func gates(t *witness.Inventory, s object.Settings, orphans, ended, stuck int, missingFromList []string) []gate {
	network := conditionGate(object.NetworkReady, t.Runtime, t.Runtime.NetReady)
	network.network = true
	return []gate{
		kubeletAnswers(t),
		UptimeGate(object.KubeletUptime, "kubelet", t.Kubelet.Age, t.Kubelet.AgeErr, s.KubeletUptime),
		kubeletNotWorking(t, orphans, stuck),
		runtimeAnswers(t),
		UptimeGate(object.RuntimeUptime, "the runtime", t.Runtime.Age, t.Runtime.AgeErr, s.RuntimeUptime),
		conditionGate("runtime-ready", t.Runtime, t.Runtime.Ready),
		network,
		hostNamespaces(s),
		noOtherKubelet(t),
		noMassOrphaning(t, s, orphans-ended),
		apiserverAnswers(t, orphans),
		listIsOurs(t, s, orphans, missingFromList),
		kubeletSources(t, orphans),
		nodeIdentity(t, orphans),
	}
}

func kubeletAnswers(t *witness.Inventory) gate {
	const name = "kubelet-heard"
	if !t.Kubelet.OK() {
		return unknownGate(name, "kubelet's /pods: %v", responseError(t.Kubelet.Response))
	}
	if t.Kubelet.ByName() {
		return openGate(name, "kubelet's podresources list %d pods; its /pods: %v", len(t.Kubelet.Names), t.Kubelet.Refused)
	}
	return openGate(name, "kubelet has %d pods", witness.CountPods(t.Kubelet.Pods))
}

func responseError(h witness.Response) error {
	if !h.Asked {
		return errors.New("not asked")
	}
	return h.Err
}

func UptimeGate(name, who string, age time.Duration, err error, least time.Duration) gate {
	switch {
	case least <= 0:
		return openGate(name, "not required")
	case err != nil:
		return unknownGate(name, "its process: %v", err)
	case age < least:
		return closedGate(name, "%s has been up for %s of %s", who, object.Round(age), object.Round(least))
	}
	return openGate(name, "%s has been up for %s", who, object.Round(age))
}

// kubeletNotWorking is closed while kubelet still terminates pods that have left its list. A kubelet older than v1.27
// does not count them: there the grace period, which is never shorter than that of the pod's containers, has to be
// enough. One not proven to be older has not begun to count: it waits for a source of its pods. Kubelet retries forever
// to terminate a pod whose processes do not die; the agent does not wait that long.
func kubeletNotWorking(t *witness.Inventory, orphans, stuck int) gate {
	const name = "kubelet-not-working"
	switch k := t.Kubelet; {
	case nothingSuspicious(t, orphans):
		return openGate(name, notNeeded)
	case k.Uncounted() && k.HealthErr != nil:
		return unknownGate(name, "its metrics are refused, and it is not known to be healthy: %v", k.HealthErr)
	case k.Uncounted():
		return openGate(name, "kubelet is healthy; its metrics are refused: twice the grace period has to be enough")
	case errors.Is(k.WorkingErr, witness.ErrNoMetric):
		if why := witness.NotOld(k.Version, t.Cluster.Version); why != "" {
			return unknownGate(name, "%v, and %s", k.WorkingErr, why)
		}
		return openGate(name, "%v: the grace period has to be enough", k.WorkingErr)
	case k.WorkingErr != nil:
		return unknownGate(name, "%s: %v", witness.WorkingFamily, k.WorkingErr)
	case k.Working > 0 && k.Working <= stuck:
		return openGate(name, "kubelet has been terminating %d pods for twice the grace period without success",
			k.Working)
	case k.Working > 0:
		return closedGate(name, "kubelet is still terminating %d pods that are no longer wanted", k.Working)
	}
	return openGate(name, "kubelet is terminating no unwanted pods")
}

// kubeletSources is open if kubelet shows that it has received its pods from the apiserver. While its own LIST is
// refused after a start, its /pods has only static pods and looks like that of a drained node.
func kubeletSources(t *witness.Inventory, orphans int) gate {
	const name = "kubelet-sources"
	c := &t.Cluster
	own, listed := c.Pods[t.Own]
	switch {
	case nothingSuspicious(t, orphans):
		return openGate(name, notNeeded)
	case !t.Kubelet.OK():
		return unknownGate(name, "kubelet did not answer")
	case !c.OK():
		return unknownGate(name, "there is no list of the apiserver to compare kubelet's with")
	case listed && !own.Mirror && !witness.HasPod(t.Kubelet.Pods, t.Own),
		listed && !own.Mirror && t.Kubelet.Again != nil && !witness.HasPod(t.Kubelet.Again, t.Own):
		return unknownGate(name, "kubelet lacks the agent's own pod %s, which the apiserver lists", t.Own)
	case len(c.Proven) > 0:
		return unknownGate(name, "kubelet lacks pods that the apiserver lists and that it has known before: %s",
			finding.JoinFirst(c.Proven, 3))
	case c.LacksMost():
		return unknownGate(name, "kubelet lacks %d of %d pods that the apiserver lists", c.Lacked, c.Listed)
	}
	ordinary := 0
	for _, pod := range t.Kubelet.Pods {
		if !pod.Static {
			ordinary++
		}
	}
	if others := othersRunning(t); ordinary == 0 && len(others) > 0 {
		return unknownGate(name, "kubelet has no pod from the apiserver, while these are running: %s",
			finding.JoinFirst(others, 3))
	}
	return openGate(name, "kubelet has %d of %d pods that the apiserver lists", c.Listed-c.Lacked, c.Listed)
}

// othersRunning names the running pods that kubelet lacks, except static ones.
func othersRunning(t *witness.Inventory) []string {
	var names []string
	for uid := range t.Runtime.Running {
		pod := t.Runtime.Pods[uid]
		if !witness.HasPod(t.Kubelet.Pods, uid) && len(uid) != 32 && (pod.Source == "" || pod.Source == "api") {
			names = append(names, cmp.Or(strings.Trim(pod.Namespace+"/"+pod.Name, "/"), uid))
		}
	}
	slices.Sort(names)
	return names
}

func runtimeAnswers(t *witness.Inventory) gate {
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

func conditionGate(name string, r witness.RuntimeInventory, c witness.Condition) gate {
	if !r.OK() {
		return unknownGate(name, "the runtime did not answer")
	}
	return gate{Gate: object.Gate{Name: name, Open: c.OK, Why: c.Why}}
}

func hostNamespaces(s object.Settings) gate {
	const name = "host-namespaces"
	if !s.HostNamespaces {
		return unknownGate(name, "the agent does not see all processes of the host")
	}
	return openGate(name, "the agent sees the host's processes")
}

// noMassOrphaning is the circuit breaker: if many pods vanish at once, a wrong witness is more likely.
func noMassOrphaning(t *witness.Inventory, s object.Settings, orphans int) gate {
	const name = object.Breaker
	all := orphans + witness.CountPods(t.Kubelet.Pods, t.Cluster.Pods)
	if most := max(s.MassOrphaning, all*s.MassPercent/100); orphans > most {
		return closedGate(name, "%d of %d pods are known to no witness, more than %d: more likely a witness is wrong",
			orphans,
			all, most)
	}
	return openGate(name, "%d of %d pods are known to no witness", orphans, all)
}

func apiserverAnswers(t *witness.Inventory, orphans int) gate {
	const name = "apiserver-heard"
	switch {
	case t.Cluster.OK():
		return openGate(name, "it lists %d pods of this node", witness.CountPods(t.Cluster.Pods))
	case nothingSuspicious(t, orphans):
		return openGate(name, notNeeded)
	}
	return unknownGate(name, "the apiserver's list of pods: %v", responseError(t.Cluster.Response))
}

// listIsOurs is open if there is a proof that the list belongs to this node and is not empty by mistake: the agent's
// own pod, or a pod that kubelet has from the apiserver. A list without many of kubelet's pods is outdated.
func listIsOurs(t *witness.Inventory, s object.Settings, orphans int, missingFromList []string) gate {
	const name = "list-is-ours"
	c := &t.Cluster
	own, listed := c.Pods[t.Own]
	switch {
	case nothingSuspicious(t, orphans):
		return openGate(name, notNeeded)
	case !c.OK():
		return unknownGate(name, "there is no list")
	case len(c.OnOtherNodes) > 0:
		return unknownGate(name, "the list has pods of other nodes: %s", finding.JoinFirst(c.OnOtherNodes, 3))
	case len(missingFromList) > 0:
		return unknownGate(name, "the list lacks pods that the apiserver returns by name: %s",
			finding.JoinFirst(missingFromList, 3))
	case t.Own != "" && !listed:
		return unknownGate(name, "the list lacks the agent's own pod %s", t.Own)
	case c.Shared == 0 && (!listed || own.Mirror):
		return unknownGate(name, "none of kubelet's pods is in the list but static ones, whose mirrors kubelet makes "+
			"itself: an empty or foreign list proves nothing")
	case c.Outdated(s):
		return unknownGate(name, "the list lacks %d of %d pods that kubelet has from the apiserver", c.Missing,
			c.Wanted)
	}
	return openGate(name, "%d of kubelet's pods from the apiserver are in the list", c.Shared)
}

// nodeIdentity is open if the Node object belongs to this machine and boot, not to another one of the same name. Its
// Lease does not matter: kubelet itself shows whether it is alive.
func nodeIdentity(t *witness.Inventory, orphans int) gate {
	const name = "node-identity"
	switch c := &t.Cluster; {
	case nothingSuspicious(t, orphans):
		return openGate(name, notNeeded)
	case !c.OK():
		return unknownGate(name, "the apiserver did not answer")
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

// opens returns who can open a closed gate, and when.
func (g gate) opens() string {
	return map[string]string{
		"kubelet-heard": "by itself, once kubelet answers: `systemctl status kubelet`; where it refuses, an administrator " +
			"grants the right (docs/security.md)",
		object.KubeletUptime: "by itself, once kubelet has been up long enough; where it restarts again and again, an " +
			"administrator ends that",
		"kubelet-not-working": "by itself, once kubelet has ended these pods, at the latest after twice the grace period",
		"runtime-heard":       "by itself, once the runtime answers: an administrator looks at its service",
		object.RuntimeUptime: "by itself, once the runtime has been up long enough; where it restarts again and again, an " +
			"administrator ends that",
		"runtime-ready":     "by itself, once the runtime reports that it is ready: `crictl info` says what it lacks",
		object.NetworkReady: "by itself, once the runtime reports that its network is ready: the network plugin has to be installed",
		"host-namespaces": "an administrator: the agent has to run in the host's PID namespace (hostPID: true), or " +
			"paths.initPID has to name the node's PID 1",
		"no-other-kubelet": "an administrator who ends the other kubelet, or gives it a root and a cgroup of its own; an hour " +
			"later by itself",
		object.Breaker: "by itself, once fewer pods look orphaned; until then a second, stronger proof takes one pod per pass " +
			"through it, and `nodeagent clean --pod NAMESPACE/NAME --yes` one pod with the same proof; an administrator who " +
			"knows that all these pods are gone raises inspect.massOrphaning",
		"apiserver-heard": "by itself, once the apiserver answers and lets the agent list this node's pods",
		"list-is-ours": "by itself, once the apiserver's list has an ordinary pod that kubelet has too, and lacks none that " +
			"it must have",
		"kubelet-sources": "by itself, once kubelet has received its pods from the apiserver; where it does not, an " +
			"administrator looks at kubelet's credentials and log",
		"node-identity": "by itself, once kubelet has registered this machine and boot; where another machine uses this " +
			"Node's name, an administrator ends that",
	}[g.Name]
}

func noOtherKubelet(t *witness.Inventory) gate {
	const name = "no-other-kubelet"
	switch o := &t.Others; {
	case o.Err != nil:
		return unknownGate(name, "whether another kubelet runs here: %v", o.Err)
	case len(o.Sharing) > 0:
		return unknownGate(name, "another kubelet runs here: %s", strings.Join(o.Sharing[:min(3, len(o.Sharing))],
			"; "))
	case o.Past != "":
		return unknownGate(name, "another kubelet ran here %s: its pods count as live for %s", o.Past,
			witness.OtherKubeletMemory)
	case len(o.Separate) > 0:
		return openGate(name, "%s: keeps its pods elsewhere", strings.Join(o.Separate[:min(3, len(o.Separate))], ", "))
	}
	return openGate(name, "no kubelet but ours runs here")
}
