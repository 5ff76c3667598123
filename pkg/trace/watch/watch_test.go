package watch

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/test/trace/watchtest"
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name),
		CreationTimestamp: metav1.Now()}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "a:1"}}}}
}

func await(t *testing.T, what string, true func() bool) {
	t.Helper()
	limit, ticker := time.After(time.Minute), time.NewTicker(5*time.Millisecond)
	defer ticker.Stop()
	for !true() {
		select {
		case <-limit:
			t.Fatalf("never %s", what)
		case <-ticker.C:
		}
	}
}

func run(t *testing.T, c *watchtest.Cluster) *follow.Follower {
	t.Helper()
	client, err := New(c.Kubeconfig(), "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f := follow.New(follow.Config{Promised: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- client.Run(ctx, f) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	await(t, "listed", func() bool { return f.Behind(time.Now()) >= 0 })
	return f
}

// Each page is listed once; then only the watch continues, even if it is interrupted, and Events find their pod.
func TestListsOnce(t *testing.T) {
	c := watchtest.New(t)
	for i := range 5 {
		c.Pod("ADDED", pod(fmt.Sprintf("p%d", i)))
	}
	f := run(t, c)
	if n := f.Counts().Pods; n != 5 {
		t.Fatalf("%d pods", n)
	}
	c.Pod("ADDED", pod("watched"))
	await(t, "watched", func() bool { return f.Counts().Pods == 6 })
	c.End()
	c.Pod("DELETED", pod("p0"))
	await(t, "watched again", func() bool { return f.Counts().Pods == 5 })
	c.Garble()
	c.Pod("ADDED", pod("short"))
	c.Pod("DELETED", pod("short"))
	await(t, "a pod that came and went meanwhile", func() bool { return len(f.Find("uid-short", "", "")) == 1 })
	if c.Lists != 3 {
		t.Errorf("%d pages were read, want 3", c.Lists)
	}
	c.Event(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}, Reason: "FailedMount", Type: "Warning", Message: "no",
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: "uid-watched"}})
	await(t, "an Event", func() bool {
		acts := f.Find("uid-watched", "", "")
		return len(acts) == 1 && len(acts[0].Timeline.Errors) == 1
	})
	if m := f.Find("uid-watched", "", "")[0].Timeline.At(record.Created); m.Late {
		t.Error("a watched pod is late")
	}
}

// The history has expired: everything is listed again, and a pod missing from the list is removed.
func TestExpired(t *testing.T) {
	c := watchtest.New(t)
	c.Pod("ADDED", pod("a"))
	c.Pod("ADDED", pod("b"))
	f := run(t, c)
	c.Pod("DELETED", pod("a"))
	await(t, "deleted", func() bool { return f.Counts().Pods == 1 })
	c.Forget()
	c.Pod("ADDED", pod("new"))
	await(t, "listed again", func() bool { return f.Counts().Pods == 2 && f.Behind(time.Now()) >= 0 })
	acts := f.Find("uid-new", "", "")
	if len(acts) != 1 {
		t.Errorf("%+v", acts)
	}
}

func TestKubeconfig(t *testing.T) {
	if _, err := New("/does/not/exist", "test", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("no error")
	}
}

// The follower knows that a list takes time: changes that follow it may be late.
func TestListIsAGap(t *testing.T) {
	c := watchtest.New(t)
	c.Pod("ADDED", pod("a"))
	client, err := New(c.Kubeconfig(), "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told := ""
	s := client.streams(follow.New(follow.Config{}))[1]
	s.broken = func() { told += "broken " }
	s.take = func(runtime.Object, apiwatch.EventType, bool) { told += "listed " }
	s.synced = func(list bool) {
		if told += fmt.Sprintf("synced %t ", list); !list {
			cancel()
		}
	}
	_ = client.once(ctx, &s, follow.New(follow.Config{}))
	if want := "broken listed synced true synced false "; told != want {
		t.Errorf("%q, want %q", told, want)
	}
}
