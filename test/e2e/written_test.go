package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

// mark is the agent's taint; this one needs no place in the fleet's budget.
const mark = "nodeagent.github.io/unhealthy"

// TestWrittenAgain: while a disk is broken, others take away what the agent wrote about it: a condition that another writer
// has changed, a ConfigMap that a person has deleted, and a taint that another writer has removed. The agent writes it anew.
func TestWrittenAgain(t *testing.T) {
	t.Parallel() // the agent compares the Node every two minutes
	l, a := writtenDisk(t)
	const healthy = `{"status":{"conditions":[{"type":"ReadonlyFilesystem","status":"False","reason":"Forged","message":"all is well"}]}}`
	kubectl(t, l, "patch", "node", l.NodeName, "--subresource=status", "--type=strategic", "--patch", healthy)
	kubectl(t, l, "delete", "configmap", "-n", "nodeagent", "node-"+l.NodeName)
	kubectl(t, l, "taint", "node", l.NodeName, mark+"-")
	awaitWritten(t, a, nodeUID(t, l))
}

// TestWrittenOnANewNode: while a disk is broken, the Node is deleted and created again under its name, by hand or by kubelet.
// The agent writes everything on it.
func TestWrittenOnANewNode(t *testing.T) {
	l, a := writtenDisk(t)
	again := func(t *testing.T, create func() error) {
		t.Helper()
		before := nodeUID(t, l)
		kubectl(t, l, "delete", "node", l.NodeName)
		if err := create(); err != nil {
			t.Fatal(err)
		}
		after := nodeUID(t, l)
		if after == before {
			t.Fatalf("the Node still has the UID %s", before)
		}
		// The token is bound to the old Node. A pod would have a new one.
		if err := l.ServiceAccountKubeconfig(t.Context(), "nodeagent", "nodeagent", filepath.Join(a.Dir, "kubeconfig")); err != nil {
			t.Fatal(err)
		}
		awaitWritten(t, a, after)
	}
	t.Run("by hand", func(t *testing.T) { // kubelet does not start, and so does not register it
		again(t, func() error {
			return l.KubectlApply(t.Context(), `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+l.NodeName+`"}}`)
		})
	})
	t.Run("by kubelet", func(t *testing.T) {
		if err := l.Stop(t.Context(), "kubelet"); err != nil {
			t.Fatal(err)
		}
		again(t, func() error { return errors.Join(l.Start(t.Context(), "kubelet"), l.WaitNodeReady(t.Context())) })
	})
}

// writtenDisk breaks a disk, and waits until the agent has written that in the Node, in its ConfigMap and as a taint.
func writtenDisk(t *testing.T) (*lab.Lab, *harness.Agent) {
	t.Helper()
	ofTheProcess(t, "the pod of an agent goes with its Node, and its next one writes everything anyway")
	l := openLab(t)
	t.Cleanup(func() { // after the agent has ended
		_, _ = l.Kubectl(context.WithoutCancel(t.Context()), "taint", "node", l.NodeName, mark+"-")
	})
	a := install(t, l, harness.Overrides{"report": map[string]any{
		"configMap": map[string]any{"enabled": true, "namespace": "nodeagent"},
		"taint":     map[string]any{"mode": "on", "prefer": []string{"filesystem-readonly"}}}})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	disk := newDisk(t, a)
	if err := disk.Fail(); err != nil {
		t.Fatal(err)
	}
	awaitWritten(t, a, nodeUID(t, l))
	return l, a
}

func nodeUID(t *testing.T, l *lab.Lab) string {
	t.Helper()
	return kubectl(t, l, "get", "node", l.NodeName, "-o", "jsonpath={.metadata.uid}")
}

func kubectl(t *testing.T, l *lab.Lab, args ...string) string {
	t.Helper()
	out, err := l.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatalf("kubectl %q: %v: %s", args, err, out)
	}
	return string(out)
}

// awaitWritten waits until the Node and the ConfigMap, which this Node owns, both report the broken disk, and the same
// time of it, and the Node has the taint.
func awaitWritten(t *testing.T, a *harness.Agent, uid string) {
	t.Helper()
	began := time.Now()
	err := harness.WaitFor(t.Context(), "the broken disk in the Node and in its ConfigMap", func() error {
		shown, err := a.Condition(t.Context(), "ReadonlyFilesystem")
		if err != nil {
			return err
		}
		out, err := a.Lab.Kubectl(t.Context(), "get", "configmap", "-n", "nodeagent", "node-"+a.Lab.NodeName, "-o", "json")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var object struct {
			Metadata struct{ OwnerReferences []struct{ UID string } }
			Data     map[string]string
		}
		var kept harness.Condition
		if err := errors.Join(json.Unmarshal(out, &object),
			json.Unmarshal([]byte(object.Data["ReadonlyFilesystem"]), &kept)); err != nil {
			return err
		}
		effect, err := a.Lab.Kubectl(t.Context(), "get", "node", a.Lab.NodeName, "-o",
			`jsonpath={.spec.taints[?(@.key=="`+mark+`")].effect}`)
		if err != nil || string(effect) != "PreferNoSchedule" {
			return fmt.Errorf("the taint has the effect %q, %w", effect, err)
		}
		owners := object.Metadata.OwnerReferences
		if shown.Status != "True" || kept.Status != "True" || len(owners) != 1 || owners[0].UID != uid ||
			!kept.LastTransitionTime.Equal(shown.LastTransitionTime) {
			return fmt.Errorf("the Node %s has %+v, the ConfigMap of %+v has %+v", uid, shown, owners, kept)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("written after %s", time.Since(began).Round(100*time.Millisecond))
}
