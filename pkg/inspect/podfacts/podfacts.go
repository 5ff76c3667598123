// Package podfacts gathers the facts about one pod from the apiserver, kubelet, the runtime and the node's files. It
// reads only what the answer needs, each part with a time limit, and never accesses a foreign mount. It notes sources
// that do not answer.
package podfacts

import (
	"context"

	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/podstate"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
)

// Lookups are requests to the apiserver that only a pod in trouble needs. A nil one is not configured.
type Lookups struct {
	// Exists reports whether a ConfigMap ("configmap") or Secret ("secret") exists, without reading it.
	Exists     func(ctx context.Context, kind, namespace, name string) (bool, error)
	Events     func(ctx context.Context, pod *corev1.Pod) ([]corev1.Event, error)
	Claim      func(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	Volume     func(ctx context.Context, name string) (*corev1.PersistentVolume, error)
	Attachment func(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
}

// The time limits of the first, parallel requests, and of those that follow from them. Together they are below the 15 s
// that a command of the agent takes.
const (
	firstLimit   = 4 * time.Second
	localLimit   = 2 * time.Second
	holdersLimit = 2 * time.Second
	lookupsLimit = 3 * time.Second
)

// Gather reads everything about one pod. The name must be valid.
func Gather(ctx context.Context, h *host.Host, lookups Lookups, namespace, name string) podstage.Facts {
	g := &gatherer{host: hostscan.New(ctx, h, hostscan.Deadline{}).Host, lookups: lookups}
	g.facts = podstage.Facts{Node: h.NodeName, Namespace: namespace, Name: name, Now: h.Clock().Wall}
	g.ask(ctx)
	g.identify()
	g.facts.Local = g.local(ctx)
	pod := g.facts.Apiserver.Pod
	if pod == nil {
		pod = g.facts.Kubelet.Pod
	}
	if g.needsHolders(pod) {
		g.holders(ctx)
	}
	if pod != nil && !isFine(pod) {
		g.lookUp(ctx, pod)
	}
	return g.facts
}

type gatherer struct {
	host    *host.Host
	lookups Lookups
	facts   podstage.Facts
	names   map[string]string // of all pods that have a sandbox, by UID
}

// within calls f and abandons it after a limit: it is for commands that end afterwards.
func within[T any](
	ctx context.Context, limit time.Duration, what string, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
	defer cancel()
	value, err := host.Abandon(ctx, func(ctx context.Context) (T, error) { return host.Ask(ctx, what, f) })
	if err != nil && ctx.Err() != nil { // the client's own error may not name the limit
		err = fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	return value, err
}

// ask asks the apiserver, kubelet and the runtime, side by side.
func (g *gatherer) ask(ctx context.Context) {
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeoutCause(ctx, firstLimit, fmt.Errorf("no answer within %s", firstLimit))
	defer cancel()
	all.Go(func() { g.facts.Apiserver, g.facts.Elsewhere = g.askApiserver(ctx) })
	all.Go(func() { g.facts.Kubelet = g.askKubelet(ctx) })
	all.Go(func() { g.facts.Runtime, g.names = g.askRuntime(ctx) })
	all.Wait()
}

func (g *gatherer) askApiserver(ctx context.Context) (here, elsewhere podstage.Source) {
	namespace, name := g.facts.Namespace, g.facts.Name
	here.Asked = true
	if g.host.Cluster.PodsNamed == nil {
		here.Err = fmt.Errorf("apiserver: %w", hosterr.ErrNotConfigured)
		return here, elsewhere
	}
	pods, err := within(ctx, firstLimit, "the apiserver", func(ctx context.Context) ([]corev1.Pod, error) {
		return g.host.Cluster.PodsNamed(ctx, namespace, name)
	})
	if here.Err = err; err != nil {
		return here, elsewhere
	}
	if len(pods) > 0 {
		here.Pod = &pods[0]
		return here, elsewhere
	}
	elsewhere.Asked = true
	elsewhere.Pod, elsewhere.Err = within(ctx, firstLimit, "the apiserver",
		func(ctx context.Context) (*corev1.Pod, error) { return g.host.Cluster.Pod(ctx, namespace, name) })
	return here, elsewhere
}

func (g *gatherer) askKubelet(ctx context.Context) podstage.Source {
	s := podstage.Source{Asked: true}
	pods, err := within(ctx, firstLimit, "kubelet", g.host.Kubelet.Pods)
	s.Err = err
	for i := range pods {
		if pods[i].Namespace == g.facts.Namespace && pods[i].Name == g.facts.Name {
			s.Pod = &pods[i]
		}
	}
	return s
}

func (g *gatherer) askRuntime(ctx context.Context) (podstage.Runtime, map[string]string) {
	r := podstage.Runtime{Asked: true, Name: "containerd"}
	if g.host.Paths.IsCRIO() {
		r.Name = "crio"
	}
	names := map[string]string{}
	runtime, err := within(ctx, firstLimit, "the container runtime", func(ctx context.Context) (podstage.Runtime, error) {
		return g.listRuntime(ctx, names)
	})
	if err != nil {
		r.Err = err
		return r, nil // an abandoned call may still write the names
	}
	runtime.Asked, runtime.Name = true, r.Name
	return runtime, names
}

// listRuntime lists the sandboxes and containers of pods of that name, with any UID, and the names of all pods.
func (g *gatherer) listRuntime(ctx context.Context, names map[string]string) (r podstage.Runtime, err error) {
	sandboxes, err := host.Ask(ctx, "container runtime", g.host.Runtime.Sandboxes)
	if err != nil {
		return r, err
	}
	for _, s := range sandboxes {
		names[s.GetMetadata().GetUid()] = s.GetMetadata().GetNamespace() + "/" + s.GetMetadata().GetName()
		if s.GetMetadata().GetNamespace() == g.facts.Namespace && s.GetMetadata().GetName() == g.facts.Name {
			r.Sandboxes = append(r.Sandboxes, s)
		}
	}
	containers, err := host.Ask(ctx, "container runtime", g.host.Runtime.Containers)
	if err != nil {
		return r, err
	}
	for _, c := range containers {
		if c.Labels["io.kubernetes.pod.namespace"] == g.facts.Namespace &&
			c.Labels["io.kubernetes.pod.name"] == g.facts.Name {
			r.Containers = append(r.Containers, c)
		}
	}
	if g.host.Runtime.Status == nil {
		return r, nil
	}
	if status, err := g.host.Runtime.Status(ctx); err == nil {
		for _, c := range status.GetStatus().GetConditions() {
			if c.Type == "NetworkReady" && !c.Status {
				r.NetworkNotReady = c.Reason + ": " + c.Message
			}
		}
	}
	return r, nil
}

// identify finds the UID of the pod on the node, and leaves out the objects of an earlier pod of the same name.
func (g *gatherer) identify() {
	f := &g.facts
	switch {
	case f.Apiserver.Pod != nil:
		f.UID = host.NodePodUID(f.Apiserver.Pod)
	case f.Kubelet.Pod != nil:
		f.UID = host.NodePodUID(f.Kubelet.Pod)
	case len(f.Runtime.Sandboxes) > 0:
		f.UID = f.Runtime.Sandboxes[0].GetMetadata().GetUid()
	case len(f.Runtime.Containers) > 0:
		f.UID = f.Runtime.Containers[0].Labels["io.kubernetes.pod.uid"]
	default:
		f.UID = g.loggedUID()
	}
	if f.Kubelet.Pod != nil && host.NodePodUID(f.Kubelet.Pod) != f.UID {
		f.Earlier = append(f.Earlier, host.NodePodUID(f.Kubelet.Pod))
		f.Kubelet.Pod = nil
	}
	f.Runtime.Sandboxes = slices.DeleteFunc(f.Runtime.Sandboxes, func(s *cri.PodSandbox) bool {
		return g.isEarlier(s.GetMetadata().GetUid())
	})
	f.Runtime.Containers = slices.DeleteFunc(f.Runtime.Containers, func(c *cri.Container) bool {
		return g.isEarlier(c.Labels["io.kubernetes.pod.uid"])
	})
}

func (g *gatherer) isEarlier(uid string) bool {
	if uid == g.facts.UID {
		return false
	}
	if !slices.Contains(g.facts.Earlier, uid) {
		g.facts.Earlier = append(g.facts.Earlier, uid)
	}
	return true
}

// loggedUID returns the UID of a pod whose directory of logs remains: <namespace>_<name>_<uid>.
func (g *gatherer) loggedUID() string {
	names, err := g.host.Files.List(g.host.Paths.PodLogs)
	if err != nil {
		return ""
	}
	for _, name := range names {
		uid, ok := strings.CutPrefix(name, g.facts.Namespace+"_"+g.facts.Name+"_")
		if ok && host.IsPodUID(uid) {
			return uid
		}
	}
	return ""
}

// isFine reports whether a pod needs no explanation.
func isFine(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodSucceeded ||
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}))
}

// needsHolders reports whether the holders of busy mounts are part of the answer.
func (g *gatherer) needsHolders(pod *corev1.Pod) bool {
	return len(g.facts.Local.Mounts) > 0 && len(g.facts.Local.Processes) == 0 &&
		(pod == nil || pod.DeletionTimestamp != nil || podstate.IsFinished(pod))
}
