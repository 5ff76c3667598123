package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
)

// partial answers like an apiserver that received a request for metadata only.
func partial(t *testing.T) http.HandlerFunc {
	t.Helper()
	return object(t, &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: testNode},
	})
}

func TestPatchNodeStatus(t *testing.T) {
	server := newFakeServer(t, partial(t))
	patch := `{"status":{"conditions":[{"type":"KernelDeadlock","status":"True"}]}}`
	if err := server.client().PatchNodeStatus(within(t, time.Minute), []byte(patch)); err != nil {
		t.Fatal(err)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	r := server.requests[0]
	got := []string{r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), server.bodies[0]}
	want := []string{"PATCH", "/api/v1/nodes/node-a/status", "application/strategic-merge-patch+json", patch}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if accept := r.Header.Get("Accept"); !strings.Contains(accept, "as=PartialObjectMetadata;g=meta.k8s.io;v=v1") {
		t.Errorf("Accept %q asks for a whole Node", accept)
	}
	if len(server.requests) != 1 {
		t.Errorf("%d requests, want 1", len(server.requests))
	}
}

func TestEvents(t *testing.T) {
	server := newFakeServer(t, partial(t))
	c := server.client()
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "node-a.1"},
		Reason:     "Tested", InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: testNode},
	}
	if err := c.CreateEvent(within(t, time.Minute), event); err != nil {
		t.Fatal(err)
	}
	var got []string
	server.mu.Lock()
	created := &corev1.Event{}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme).UniversalDeserializer()
	if err := runtime.DecodeInto(decoder, []byte(server.bodies[0]), created); err != nil ||
		created.Reason != "Tested" {
		t.Errorf("created %+v, %v", created, err)
	}
	server.mu.Unlock()
	for _, r := range server.seen() {
		got = append(got, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type"))
	}
	want := []string{
		"POST /api/v1/namespaces/default/events application/vnd.kubernetes.protobuf",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	server.set(refusal(409, metav1.StatusReasonAlreadyExists))
	if err := c.CreateEvent(within(t, time.Minute), event); !apierrors.IsAlreadyExists(err) {
		t.Errorf("CreateEvent() = %v, want AlreadyExists", err)
	}
}

func TestGets(t *testing.T) {
	meta := metav1.ObjectMeta{Name: testNode, UID: types.UID("u")}
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: meta,
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready"}}}}
	csiNode := &storagev1.CSINode{TypeMeta: metav1.TypeMeta{Kind: "CSINode", APIVersion: "storage.k8s.io/v1"},
		ObjectMeta: meta}
	server := newFakeServer(t, script(object(t, node), object(t, csiNode), text(200, "application/json", "{}"),
		object(t, node)))
	c := server.client()
	conditions, err := c.NodeConditions(within(t, time.Minute))
	if err != nil || len(conditions) != 1 {
		t.Errorf("NodeConditions() = %v, %v", conditions, err)
	}
	if got, err := c.Cluster().CSINode(within(t, time.Minute)); err != nil || got.Name != testNode {
		t.Errorf("CSINode() = %v, %v", got, err)
	}
	for _, broken := range []string{"{}", "a Node instead"} {
		if got, err := c.Cluster().CSINode(within(t, time.Minute)); err == nil {
			t.Errorf("CSINode() of %s = %v", broken, got)
		}
	}
	var paths []string
	for _, r := range server.seen() {
		paths = append(paths, r.URL.RequestURI())
	}
	want := []string{"/api/v1/nodes/node-a", "/apis/storage.k8s.io/v1/csinodes/node-a",
		"/apis/storage.k8s.io/v1/csinodes/node-a", "/apis/storage.k8s.io/v1/csinodes/node-a"}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Error(diff)
	}
}

func TestListsOfTheClusterAreCached(t *testing.T) {
	sets := &appsv1.DaemonSetList{TypeMeta: metav1.TypeMeta{Kind: "DaemonSetList", APIVersion: "apps/v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		Items: []appsv1.DaemonSet{{ObjectMeta: metav1.ObjectMeta{Name: "d",
			ManagedFields: []metav1.ManagedFieldsEntry{{}}}}}}
	revisions := &appsv1.ControllerRevisionList{TypeMeta: metav1.TypeMeta{Kind: "ControllerRevisionList",
		APIVersion: "apps/v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		Items:    []appsv1.ControllerRevision{{Revision: 3, Data: runtime.RawExtension{Raw: []byte(`{}`)}}}}
	server := newFakeServer(t, script(object(t, sets), object(t, revisions)))
	c := server.client()
	for range 3 {
		// Each caller may request its own client.
		got, err := c.Cluster().DaemonSets(within(t, time.Minute))
		if err != nil || len(got) != 1 || got[0].ManagedFields != nil {
			t.Errorf("DaemonSets() = %v, %v", got, err)
		}
		rev, err := c.Cluster().ControllerRevisions(within(t, time.Minute), "kube-system")
		if err != nil || len(rev) != 1 || rev[0].Revision != 3 || rev[0].Data.Raw != nil {
			t.Errorf("ControllerRevisions() = %v, %v", rev, err)
		}
	}
	var got []string
	for _, r := range server.seen() {
		got = append(got, r.URL.RequestURI())
	}
	want := []string{"/apis/apps/v1/daemonsets?resourceVersion=0",
		"/apis/apps/v1/namespaces/kube-system/controllerrevisions?resourceVersion=0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var err error
		giveUp := func() {}
		c := newCached(func(ctx context.Context) (int, error) {
			calls++
			giveUp()
			return calls, errors.Join(err, ctx.Err())
		})
		ask := func(want, wantCalls int) {
			t.Helper()
			got, _ := c.get(t.Context())
			if got != want || calls != wantCalls {
				t.Errorf("get() = %d after %d fetches; want %d after %d", got, calls, want, wantCalls)
			}
		}
		ask(1, 1)
		time.Sleep(cacheFor - time.Second) // of the bubble: no time passes
		ask(1, 1)
		time.Sleep(cacheFor + 2*time.Second)
		err = errors.New("refused")
		ask(2, 2)
		ask(2, 2)
		time.Sleep(2 * cacheErrorFor)
		err = nil
		ask(3, 3)

		// A caller that gives up does not leave its error to others.
		time.Sleep(2 * cacheFor)
		ctx, cancel := context.WithCancel(t.Context())
		giveUp = cancel
		if _, err := c.get(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("get() = %v, want Canceled", err)
		}
		giveUp = func() {}
		if _, err := c.get(t.Context()); err != nil {
			t.Errorf("another caller's cancellation was kept: %v", err)
		}
	})
}

func TestCachedWaitsNoLongerThanCtx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCached(func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		slow, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		done := make(chan struct{})
		go func() { defer close(done); c.get(slow) }()
		synctest.Wait()
		short, cancelShort := context.WithTimeout(t.Context(), time.Second)
		defer cancelShort()
		start := time.Now()
		if _, err := c.get(short); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Second {
			t.Errorf("get() = %v after %s", err, time.Since(start))
		}
		<-done
	})
}

func TestApplyConfigMap(t *testing.T) {
	server := newFakeServer(t, partial(t))
	object := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"node-node-a"}}`
	if err := server.client().ApplyConfigMap(within(t, time.Minute), "nodeagent", "node-node-a",
		[]byte(object)); err != nil {
		t.Fatal(err)
	}
	server.mu.Lock()
	r := server.requests[0]
	got := []string{r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), server.bodies[0]}
	server.mu.Unlock()
	want := []string{"PATCH", "/api/v1/namespaces/nodeagent/configmaps/node-node-a?fieldManager=nodeagent&force=true",
		"application/apply-patch+yaml", object}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := server.client().ApplyConfigMap(t.Context(), "a/b", "c", nil); err == nil {
		t.Error("a namespace that is none is asked for")
	}
}
