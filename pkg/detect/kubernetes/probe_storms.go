package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// probe-storms reads from kubelet's /metrics/probes the growth in 3 minutes of
//
//	prober_probe_total{container="a",namespace="shop",pod="cart-1",pod_uid="f44f4528-…",probe_type="Readiness",result="failed"} 85
//
// and, if many pods are affected, their owners from kubelet's pods.
//
// https://kubernetes.io/docs/reference/instrumentation/metrics/ (prober_probe_total).
//
// Kubelet runs the probes on the node itself: if pods of many different owners fail at once, the node is short of CPU,
// disk or network, rather than all programs broken.

const (
	probeStormsWindow = 3 * time.Minute
	probeStormPods    = 5
	probeStormOwners  = 3
	probeStormShare   = 1.0 / 3
)

// ProbeStorms finds liveness and readiness probes that begin to fail for many pods at once.
func ProbeStorms() detect.Check {
	m := &stormState{meter: checkkit.KubeletMeter{Window: probeStormsWindow, Strict: true}, storm: map[string]bool{}}
	return detect.Check{
		ID:      "probe-storms",
		Domain:  "kubernetes",
		Summary: "liveness or readiness probes of many different pods fail at the same time",
		Advice: "Check what the pods share: run `nodeagent check` for CPU, memory and disk pressure and for the CNI " +
			"plugin, then check conntrack and DNS, then a service that all of them need. Failing liveness probes " +
			"restart containers and add load.",
		Doc: detect.Doc{
			Reads: []string{"https://127.0.0.1:10250/metrics/probes, on a node at rest once in 40 minutes", "https://127.0.0.1:10250/pods, in a storm"},
			Why:   "Pods are removed from their services or restarted, all at once, although their programs work.",
			Faults: []detect.Fault{
				{Reason: "ProbeStorm", Severity: finding.Warning, When: "5 pods of 3 owners, and a third of those " +
					"with probes, fail probes within 3 minutes that they did not fail before; cleared below half of " +
					"that"},
			},
			FalseAlarms: "A single broken deployment is not reported; startup probes and pods younger than the " +
				"window are ignored. If a service that all of the pods need is down, that is reported as a storm.",
		},
		Every: time.Minute,
		Run:   m.observe,
	}
}

// stormState is the state between runs.
type stormState struct {
	meter  checkkit.KubeletMeter
	storm  map[string]bool          // UIDs of the pods that are in the storm
	failed map[string]time.Duration // UIDs of pods to when they first failed, by the time since boot
}

func (m *stormState) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	grown, scrape, err := m.meter.Read(ctx, h, probeKey, "prober_probe_total")
	if err != nil {
		return nil, err
	}
	if scrape.ProbesErr != nil {
		return nil, fmt.Errorf("kubelet's probes: %w", scrape.ProbesErr)
	}
	if grown == nil {
		// After a rest, pods that failed before it are known. Either way the next minute shows which fail now.
		if m.meter.NoRest = true; !m.meter.Gap {
			m.failed = nil
		}
		return nil, nil
	}
	m.meter.NoRest = false
	probed, failing := m.failing(grown, scrape.At)
	if len(failing) < (probeStormPods+1)/2 || float64(len(failing)) < probeStormShare/2*float64(probed) {
		return nil, nil
	}
	m.meter.NoRest = true
	names, owners, err := ownersOf(ctx, h, failing)
	if err != nil {
		return nil, fmt.Errorf("owners of pods whose probes fail: %w", err)
	}
	if owners < probeStormOwners {
		return nil, nil
	}
	return []finding.Finding{{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: "ProbeStorm",
		Message: fmt.Sprintf("probes of %d of %d pods, of %d different owners, began to fail within %s: %s",
			len(failing), probed, owners, probeStormsWindow, finding.JoinFirst(names, 5)),
		Facts: map[string]string{"failing": strconv.Itoa(len(failing)), "probed": strconv.Itoa(probed),
			"owners": strconv.Itoa(owners), "pods": finding.JoinFirst(names, 50)},
		BelowRaise: len(failing) < probeStormPods || float64(len(failing)) < probeStormShare*float64(probed),
	}}, nil
}

// probeKey returns the pod and outcome. Startup probes fail by design, so they are left out.
func probeKey(_ string, s kubelet.Sample) string {
	kind := s.Label("probe_type")
	if kind != "Liveness" && kind != "Readiness" {
		return ""
	}
	if s.Label("result") == "successful" {
		return "good " + s.Label("pod_uid")
	}
	return "bad " + s.Label("pod_uid")
}

// failing returns how many pods had probes within the window, and which of them began to fail within two windows. A pod
// failing for longer is not part of a storm, unless it was in one and has failed ever since.
func (m *stormState) failing(grown map[string]float64, now finding.Timestamp) (probed int, failing []string) {
	before := m.meter.Oldest()
	pods, bad := map[string]bool{}, map[string]time.Duration{}
	for key, count := range grown {
		outcome, uid, _ := strings.Cut(key, " ")
		_, good := before["good "+uid]
		_, failed := before["bad "+uid]
		if count == 0 || !good && !failed {
			continue // it is new
		}
		pods[uid] = true
		if outcome == "bad" {
			bad[uid] = now.SinceBoot
			if first, known := m.failed[uid]; known {
				bad[uid] = first
			}
		}
	}
	if m.failed == nil { // the start of failures in the first window is not known
		for uid := range bad {
			bad[uid] = 0
		}
	}
	for uid, first := range bad {
		if m.storm[uid] || now.SinceBoot-first <= probeStormsWindow {
			failing = append(failing, uid)
		}
	}
	maps.DeleteFunc(m.storm, func(uid string, _ bool) bool {
		_, still := bad[uid]
		return !still
	})
	if len(failing) >= probeStormPods {
		for _, uid := range failing {
			m.storm[uid] = true
		}
	}
	m.failed = bad
	slices.Sort(failing)
	return len(pods), failing
}

// ownersOf returns the names of pods, and how many different controllers they belong to.
func ownersOf(ctx context.Context, h *host.Host, uids []string) (names []string, owners int, err error) {
	pods, err := discover.NodePods(ctx, h)
	if err != nil {
		return nil, 0, err
	}
	different := map[string]bool{}
	for i := range pods {
		if pod := &pods[i]; slices.Contains(uids, string(pod.UID)) || slices.Contains(uids, host.NodePodUID(pod)) {
			names = append(names, checkkit.PodName(pod))
			different[ownerOf(pod)] = true
		}
	}
	slices.Sort(names)
	return names, len(different), nil
}

// ownerOf returns the controller of a pod, or the pod itself if it has none.
func ownerOf(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return string(owner.UID)
	}
	return string(pod.UID)
}
