package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/lab"
)

// inspectLab is the node of the running lab, with the clients of the real agent.
type inspectLab struct {
	t    *testing.T
	lab  *lab.Lab
	host *host.Host
	rest *rest.RESTClient
}

// openInspectLab makes the clients with an administrator's credentials, or with kubelet's own.
func openInspectLab(t *testing.T, kubelets bool) *inspectLab {
	t.Helper()
	observesInTest(t)
	l := openLab(t)
	cfg := config.Default()
	cfg.Paths.Kubeconfig = l.Paths.AdminKubeconfig
	if kubelets {
		cfg.Paths.Kubeconfig = l.Paths.KubeletKubeconfig
	}
	clients, err := agent.OpenHost(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = clients.Close() })
	access, err := clientcmd.BuildConfigFromFlags("", l.Paths.AdminKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	access.QPS, access.Burst = 50, 100
	access.APIPath, access.GroupVersion = "/api", &corev1.SchemeGroupVersion
	access.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(access)
	if err != nil {
		t.Fatal(err)
	}
	return &inspectLab{t: t, lab: l, host: clients.Host, rest: client}
}

// strict has no grace period: an object that a single pass denies is a leftover.
func strict() object.Settings { return object.Settings{HostNamespaces: true, MassOrphaning: 1 << 20} }

// churn creates and deletes pods, a few at a time, in every way in which pods end.
type churn struct {
	*inspectLab
	namespace string
	enough    int   // pods: fewer prove too little
	passes    int64 // the same

	shape  func(n int, pod *corev1.Pod)      // may change a pod before it is created; may be nil
	forced func(n int, pod *corev1.Pod) bool // whether a pod is deleted by force

	mu   sync.Mutex
	uids map[string]string // name by UID, of all pods ever created
}

// run makes one pod after another until next returns false.
func (c *churn) run(ctx context.Context, next func() (int, bool)) error {
	for {
		n, ok := next()
		if !ok {
			return nil
		}
		if err := c.live(ctx, n); err != nil {
			return fmt.Errorf("pod %d: %w", n, err)
		}
	}
}

// live runs the life of one pod: it may be deleted before it starts to run, while it runs, or after it has ended by
// itself, gracefully or by force.
func (c *churn) live(ctx context.Context, n int) error {
	var made corev1.Pod
	pod := c.pod(n)
	if c.shape != nil {
		c.shape(n, pod)
	}
	if err := c.rest.Post().Namespace(c.namespace).Resource("pods").Body(pod).Do(ctx).Into(&made); err != nil {
		return err
	}
	c.mu.Lock()
	c.uids[string(made.UID)] = made.Name
	c.mu.Unlock()
	pause(ctx, time.Duration(rand.IntN(4000))*time.Millisecond)
	options := metav1.DeleteOptions{}
	if c.forced(n, &made) {
		options.GracePeriodSeconds = new(int64) // by force: removed from the apiserver at once
	}
	err := c.rest.Delete().Namespace(c.namespace).Resource("pods").Name(made.Name).Body(&options).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	for ctx.Err() == nil {
		if _, err := c.get(ctx, made.Name); apierrors.IsNotFound(err) {
			return nil
		}
		pause(ctx, 200*time.Millisecond)
	}
	return ctx.Err()
}

// get reads a pod from the apiserver, with a consistent read.
func (c *churn) get(ctx context.Context, name string) (corev1.Pod, error) {
	var pod corev1.Pod
	err := c.rest.Get().Namespace(c.namespace).Resource("pods").Name(name).Do(ctx).Into(&pod)
	return pod, err
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (c *churn) pod(n int) *corev1.Pod {
	command := []string{"sleep", "1000"}
	if n%4 == 0 {
		command = []string{"true"}
	}
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("churn-%d", n)},
		Spec: corev1.PodSpec{
			NodeName: c.lab.NodeName, TerminationGracePeriodSeconds: &grace, HostNetwork: n%10 == 9,
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "main", Image: lab.BusyboxImage, ImagePullPolicy: corev1.PullNever, Command: command,
				VolumeMounts: []corev1.VolumeMount{{Name: "memory", MountPath: "/memory"}},
			}},
			Volumes: []corev1.Volume{{Name: "memory", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
			}}},
		},
	}
}

// alive reports whether a pod is still in the apiserver, by a consistent read after the call.
func (c *churn) alive(uid string) (bool, error) {
	c.mu.Lock()
	name, mine := c.uids[uid]
	c.mu.Unlock()
	if !mine {
		return false, nil
	}
	pod, err := c.get(c.t.Context(), name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && string(pod.UID) == uid, err
}

// Pods come and go on a real kubelet while an inspector without any grace period makes passes in a tight loop. No
// object of a pod that lives or is starting may ever be called a leftover: a pod that is in the apiserver after the
// pass existed during all of it.
func TestNoLivingPodIsEverALeftover(t *testing.T) {
	t.Parallel()
	c := &churn{inspectLab: openInspectLab(t, false), namespace: "nodeagent-churn", enough: 60, passes: 20}
	if *long {
		c.enough, c.passes = 1000, 150
	}
	churnPods(t, c)
}

// The same if kubelet refuses its /pods.
func TestNoLivingPodIsEverALeftoverByName(t *testing.T) {
	t.Parallel()
	churnPods(t, &churn{inspectLab: openInspectLab(t, true), namespace: "nodeagent-churn-names",
		enough: 60, passes: 20})
}

func churnPods(t *testing.T, c *churn) {
	t.Helper()
	c.uids = make(map[string]string)
	c.forced = func(n int, _ *corev1.Pod) bool { return n%3 == 0 }
	c.makeNamespace()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	var pods, passes atomic.Int64
	next := func() (int, bool) {
		n := int(pods.Add(1)) - 1
		return n, n < c.enough || passes.Load() < c.passes
	}
	const lanes = 8 // with more, two processors make fewer passes in the same time
	var lanesDone sync.WaitGroup
	for range lanes {
		lanesDone.Go(func() {
			if err := c.run(ctx, next); err != nil {
				t.Error(err)
			}
		})
	}
	finished := make(chan struct{})
	go func() { lanesDone.Wait(); close(finished) }()
	c.inspectUntil(finished, &passes)
}

// inspectUntil makes passes in a tight loop, each with a new inspector, so that none uses an old list.
func (c *churn) inspectUntil(finished <-chan struct{}, passes *atomic.Int64) {
	t := c.t
	verdicts := make(map[object.Verdict]int)
	defer func() { t.Logf("%d passes, verdicts %v, %d pods", passes.Load(), verdicts, len(c.uids)) }()
	for {
		select {
		case <-finished:
			if passes.Load() < c.passes || len(c.uids) < c.enough || verdicts[object.Live] == 0 {
				t.Errorf("only %d passes and %d pods: this test proves little", passes.Load(), len(c.uids))
			}
			return
		default:
		}
		report, _ := inspect.New(c.host, strict(),
			slog.New(slog.DiscardHandler)).Pass(t.Context(), nil)
		passes.Add(1)
		checked := make(map[string]bool)
		for _, o := range report.Objects {
			verdicts[o.Verdict]++
			if o.Verdict != object.Leftover || checked[o.Pod.UID] {
				continue
			}
			checked[o.Pod.UID] = true
			alive, err := c.alive(o.Pod.UID)
			if err != nil {
				t.Error(err)
			}
			if alive {
				t.Errorf("%s %s of living pod %+v: %s\n%v", o.Kind, o.ID, o.Pod, o.Why, o.Witnesses)
			}
		}
	}
}

func (c *churn) makeNamespace() {
	t := c.t
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}}
	err := c.rest.Post().Resource("namespaces").Body(namespace).Do(t.Context()).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = c.rest.Delete().Resource("namespaces").Name(c.namespace).Do(ctx).Error()
	})
	for t.Context().Err() == nil { // the ServiceAccount of its pods is created a moment later
		if c.rest.Get().Namespace(c.namespace).Resource("serviceaccounts").Name("default").Do(
			t.Context()).Error() == nil {
			return
		}
		pause(t.Context(), 100*time.Millisecond)
	}
}

// A quiet node causes no requests to the apiserver.
func TestQuietNodeAsksNothing(t *testing.T) {
	observesInTest(t)
	newBystanders(t, openLab(t)) // without pods there is nothing to ask about
	for name, kubelets := range map[string]bool{"administrator": false, "kubelet": true} {
		t.Run(name, func(t *testing.T) { asksNothing(t, openInspectLab(t, kubelets)) })
	}
}

func asksNothing(t *testing.T, c *inspectLab) {
	t.Helper()
	inspector := inspect.New(c.host, strict(), slog.New(slog.DiscardHandler))
	_, _ = inspector.Pass(t.Context(), nil) // asks for the attached volumes, for an hour
	requests := 0
	pods, node := c.host.Cluster.Pods, c.host.Cluster.Node
	c.host.Cluster.Pods = func(ctx context.Context) ([]corev1.Pod, error) { requests++; return pods(ctx) }
	c.host.Cluster.Node = func(ctx context.Context) (*corev1.Node, error) { requests++; return node(ctx) }
	began := time.Now()
	report, _ := inspector.Pass(t.Context(), nil)
	suspicious := 0
	for _, o := range report.Objects {
		if o.Verdict != object.Live && o.Verdict != object.Foreign {
			suspicious++
			t.Logf("%s %s %+v: %s: %s", o.Kind, o.ID, o.Pod, o.Verdict, o.Why)
		}
	}
	for _, failure := range report.Errors {
		t.Errorf("%s: %s", failure.What, failure.Error)
	}
	t.Logf("%d objects, %d suspicious, %d requests, %s", len(report.Objects), suspicious, requests, time.Since(began))
	if suspicious == 0 && requests != 0 {
		t.Errorf("%d requests to the apiserver although nothing is suspicious", requests)
	}
}
