package criticaldaemonsets

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// daemonSetState holds the readings of one run about a critical DaemonSet.
type daemonSetState struct {
	Name    string            // namespace/name
	Because string            // why it is critical
	Trusted bool              // only the cluster's operator can have made it
	Set     *appsv1.DaemonSet // nil if only pods or the configuration name it
	Pods    []corev1.Pod      // its pods on this node
	SetsErr error             // why DaemonSets could not be listed now
	Placed  placement         // whether it should have a pod here
	Pending []corev1.Pod      // its pods for this node that are not scheduled
	Open    string            // the unknown facts about a missing pod
	Newest  *appsv1.ControllerRevision
	Still   time.Duration // for how long its rollout has made no progress
}

func (d daemonSetState) subject() finding.Subject {
	return finding.Subject{Kind: "daemonset", Name: d.Name}
}

// trusts reports whether only the cluster's operator can create objects in a namespace.
func (s Settings) trusts(namespace string) bool {
	return slices.ContainsFunc(s.Namespaces, func(pattern string) bool {
		is, err := path.Match(pattern, namespace)
		return is && err == nil
	})
}

// criticalSets returns the critical DaemonSets with their pods, sorted by name.
func criticalSets(s Settings, sets []appsv1.DaemonSet, pods []corev1.Pod) ([]daemonSetState, error) {
	selector, err := labels.Parse(s.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector %q: %w", s.Selector, err)
	}
	critical := map[string]daemonSetState{}
	for _, name := range s.DaemonSets {
		critical[name] = daemonSetState{Name: name, Because: "the configuration lists it", Trusted: true}
	}
	for i := range sets {
		set := &sets[i]
		name := set.Namespace + "/" + set.Name
		seen, listed := critical[name]
		switch {
		case listed:
		case slices.Contains(s.PriorityClasses, set.Spec.Template.Spec.PriorityClassName):
			seen.Because = "its priority class is " + set.Spec.Template.Spec.PriorityClassName
		case s.Selector != "" && selector.Matches(labels.Set(set.Labels)):
			seen.Because = "its labels match " + s.Selector
		default:
			continue
		}
		seen.Name, seen.Set, seen.Trusted = name, set, seen.Trusted || s.trusts(set.Namespace)
		critical[name] = seen
	}
	known := map[string]bool{}
	for i := range sets {
		known[sets[i].Namespace+"/"+sets[i].Name] = true
	}
	for i := range pods {
		owner := metav1.GetControllerOfNoCopy(&pods[i])
		if owner == nil || owner.Kind != "DaemonSet" {
			continue
		}
		name := pods[i].Namespace + "/" + owner.Name
		seen, ok := critical[name]
		if !ok && (known[name] || !slices.Contains(s.PriorityClasses, pods[i].Spec.PriorityClassName)) {
			continue
		}
		if !ok {
			seen = daemonSetState{Name: name, Trusted: s.trusts(pods[i].Namespace),
				Because: "the priority class of its pod is " + pods[i].Spec.PriorityClassName}
		}
		if seen.Set != nil && seen.Set.UID != owner.UID {
			continue // of an earlier DaemonSet of this name
		}
		seen.Pods = append(seen.Pods, pods[i])
		critical[name] = seen
	}
	for _, name := range s.Ignore {
		delete(critical, name)
	}
	return slices.SortedFunc(maps.Values(critical), func(a, b daemonSetState) int {
		return cmp.Compare(a.Name, b.Name)
	}), nil
}

// placement says whether a DaemonSet should have a pod on this node.
type placement struct {
	Here bool
	Err  error // why it is not known
}

// placementOn decides as the DaemonSet controller does (pkg/controller/daemon: NodeShouldRunDaemonPod).
func placementOn(set *appsv1.DaemonSet, node *corev1.Node) placement {
	pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return placement{}
	}
	// The controller takes a malformed selector as no match, and so does this code.
	if match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !match {
		return placement{}
	}
	tolerations := slices.Concat(pod.Spec.Tolerations, daemonTolerations(pod.Spec.HostNetwork))
	_, repelled := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, tolerations,
		func(t *corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoExecute || t.Effect == corev1.TaintEffectNoSchedule
		}, true)
	return placement{Here: !repelled}
}

// daemonTolerations returns the tolerations that the controller adds to each pod of a DaemonSet.
// https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations
func daemonTolerations(hostNetwork bool) []corev1.Toleration {
	exists := func(key string, effect corev1.TaintEffect) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
	}
	tolerations := []corev1.Toleration{
		exists(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute),
		exists(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute),
		exists(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule),
		exists(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule),
		exists(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule),
		exists(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule),
	}
	if hostNetwork {
		tolerations = append(tolerations, exists(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))
	}
	return tolerations
}

// meantFor reports whether an unscheduled pod of a DaemonSet is the one for a node: the controller writes the node's
// name into a required affinity, in every term.
func meantFor(pod *corev1.Pod, node string) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return false
	}
	required := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		return false
	}
	return !slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == "metadata.name" && r.Operator == corev1.NodeSelectorOpIn &&
				slices.Equal(r.Values, []string{node})
		})
	})
}
