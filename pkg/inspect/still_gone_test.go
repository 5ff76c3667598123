package inspect

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

const goneStatic = "00000000000000000000000000000def"

func TestStillGone(t *testing.T) {
	manifest := func(n *fullNode, name, text string) { n.write(filepath.Join(n.host.Paths.StaticPods, name), text) }
	tests := map[string]struct {
		uid  string
		bend func(n *fullNode)
		want string // part of the error; empty: still gone
	}{
		"a pod":        {inspecttest.UIDOf(3), func(*fullNode) {}, ""},
		"a static pod": {goneStatic, func(*fullNode) {}, ""},
		"nobody's":     {"", func(*fullNode) {}, "its pod is not known"},
		"kubelet has it again": {inspecttest.UIDOf(3), func(n *fullNode) {
			n.add(inspecttest.UIDOf(3), "web-3")
		}, "kubelet has pod " + inspecttest.UIDOf(3) + " again: default/web-3"},
		"kubelet has the static pod again": {goneStatic, func(n *fullNode) {
			n.kubelet[goneStatic] = n.pod(goneStatic, "kube-system", "x")
		}, "kubelet has pod"},
		"kubelet does not answer": {inspecttest.UIDOf(3), func(n *fullNode) {
			n.host.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return nil, errors.New("refused") }
		}, "refused"},
		"kubelet was just started": {inspecttest.UIDOf(3), func(n *fullNode) {
			n.now.SinceBoot = 24*time.Hour + time.Minute
		}, "kubelet has been up for 1m0s of 10m0s"},
		"kubelet's process is not there": {inspecttest.UIDOf(3), func(n *fullNode) {
			n.host.Kubelet.Process = func() (host.Process, error) { return host.Process{}, errors.New("no process") }
		}, "no process"},
		"its manifest is back, and unread": {goneStatic, func(n *fullNode) {
			manifest(n, "new.yaml", "{metadata: {name: x}}")
		}, "no pod for the manifest of default/x-node-a yet"},
		"a manifest cannot be read": {goneStatic, func(n *fullNode) {
			manifest(n, "new.yaml", "}")
		}, "new.yaml"},
		"a manifest without a name": {goneStatic, func(n *fullNode) {
			manifest(n, "new.yaml", "{metadata: {}}")
		}, "no pod name"},
		"the manifests are not known": {goneStatic, func(n *fullNode) {
			n.host.Paths.StaticPods = ""
		}, "not known"},
		"an unread manifest of its own UID": {inspecttest.UIDOf(3), func(n *fullNode) {
			manifest(n, "new.yaml", "{metadata: {name: x, uid: "+inspecttest.UIDOf(3)+"}}")
		}, "sets the UID"},
		"... beside one that is broken": {inspecttest.UIDOf(3), func(n *fullNode) {
			manifest(n, "a.yaml", "}")
			manifest(n, "new.yaml", "{metadata: {name: x, uid: "+inspecttest.UIDOf(3)+"}}")
		}, "sets the UID"},
		"kubelet ignores hidden manifests": {goneStatic, func(n *fullNode) { manifest(n, ".new.yaml", "}") }, ""},
		"others' manifests do not concern": {inspecttest.UIDOf(3), func(n *fullNode) {
			manifest(n, "new.yaml", "{metadata: {name: x}}")
		}, ""},
		"nor do broken ones": {inspecttest.UIDOf(3), func(n *fullNode) { manifest(n, "new.yaml", "}") }, ""},
		"a static pod by its sandbox": {inspecttest.UIDOf(3), func(n *fullNode) {
			manifest(n, "new.yaml", "{metadata: {name: x}}")
			n.sandboxes[inspecttest.UIDOf(3)].Annotations = map[string]string{witness.SourceAnnotation: "file"}
		}, "its source is file"},
		"a static pod for all that is known": {inspecttest.UIDOf(3), func(n *fullNode) {
			manifest(n, "new.yaml", "{metadata: {name: x}}")
			n.host.Runtime.Sandboxes = func(context.Context) ([]*cri.PodSandbox, error) {
				return nil, errors.New("away")
			}
		}, "the runtime does not answer: away"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			n.delete(inspecttest.UIDOf(3))
			test.bend(n)
			err := n.inspector.StillGone(t.Context(), object.Pod{UID: test.uid})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if n.lists+len(n.asked) > 0 {
				t.Error("the apiserver was asked")
			}
		})
	}
}

// After a static pod's manifest is put back, none of its objects is a leftover, whatever kubelet reports by then. Its
// UID may be set in the manifest.
func TestManifestIsBack(t *testing.T) {
	own := inspecttest.UIDOf(30)
	for name, test := range map[string]struct {
		uid, manifest string
		want          object.Verdict
		why           string
	}{
		"none":          {goneStatic, "", object.Leftover, ""},
		"none, own UID": {own, "", object.Leftover, ""},
		"unread": {goneStatic, "{metadata: {name: x}}", object.Unknown,
			"no pod for the manifest of default/x-node-a yet"},
		"unreadable": {goneStatic, "}", object.Unknown, "a static pod; read the manifests: "},
		"unread, own UID": {own, "{metadata: {name: x, uid: " + own + "}}", object.Live,
			"new.yaml sets this UID for its pod"},
		"too large": {goneStatic, "{metadata: {name: x}}" + strings.Repeat(" ", witness.MaxManifest), object.Unknown,
			"not a regular file of at most"},
		"another one, own UID":  {own, "{metadata: {name: x}}", object.Leftover, ""},
		"one that kubelet has":  {goneStatic, "{metadata: {name: etcd, namespace: kube-system}}", object.Leftover, ""},
		"of another namespace":  {goneStatic, "{metadata: {name: etcd}}", object.Unknown, "default/etcd-node-a"},
		"no pod name":           {goneStatic, "{metadata: {namespace: x}}", object.Unknown, "no pod name"},
		"of a form with no end": {goneStatic, "{metadata: ", object.Unknown, "new.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFullNode(t)
			pod := n.pod(test.uid, "default", "x-node-a")
			n.run(pod)
			n.running[test.uid] = false
			n.sandboxes[test.uid].State = cri.PodSandboxState_SANDBOX_NOTREADY
			n.during(15*time.Minute, func(object.Report) {})
			if verdict, why := n.verdict(n.pass(), test.uid); verdict != object.Leftover {
				t.Fatalf("%s: %s", verdict, why)
			}
			if test.manifest != "" {
				n.write(filepath.Join(n.host.Paths.StaticPods, "new.yaml"), test.manifest)
			}
			if verdict, why := n.verdict(n.pass(), test.uid); verdict != test.want || !strings.Contains(why, test.why) {
				t.Errorf("%s: %s", verdict, why)
			}
		})
	}
}
