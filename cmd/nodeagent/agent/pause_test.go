package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
)

func TestPaused(t *testing.T) {
	away := errors.New("the apiserver is away")
	for name, test := range map[string]struct {
		annotations map[string]string
		err         error
		want        string
	}{
		"no annotation":      {},
		"another annotation": {annotations: map[string]string{"nodeagent.github.io/other": "x"}},
		"paused": {
			annotations: map[string]string{"nodeagent.github.io/pause": "disk is being moved"},
			want:        "paused by the annotation nodeagent.github.io/pause of the Node: disk is being moved",
		},
		"paused without a reason": {
			annotations: map[string]string{"nodeagent.github.io/pause": ""},
			want:        "paused by the annotation nodeagent.github.io/pause of the Node: ",
		},
		"unknown": {err: away},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := paused(t.Context(), func(context.Context) (*corev1.Node, error) {
				return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}}, test.err
			})
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("got %q, %v, want %q, %v", got, err, test.want, test.err)
			}
		})
	}
}

// No repair runs while other software works on the Node, or if the agent cannot find out whether it does.
func TestRepairsPaused(t *testing.T) {
	const node, lock, lease = "/api/v1/nodes/n", "/apis/apps/v1/namespaces/kube-system/daemonsets/kured",
		"/apis/coordination.k8s.io/v1/namespaces/medik8s-leases/leases/node-n"
	object := func(metadata string) string {
		return `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","uid":"u"` + metadata + `}}`
	}
	taken := object(`,"annotations":{"nodeagent.github.io/pause":"why"}`)
	held := `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","spec":{"holderIdentity":"self-node-remediation"}}`
	locked := `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"annotations":
{"weave.works/kured-node-lock":"{\"nodeID\":\"n\"}"}}}`
	all := fleet.Settings{Kured: "kube-system/kured", Medik8s: "medik8s-leases"}
	for name, test := range map[string]struct {
		answers  map[string]string
		settings fleet.Settings
		want     string
		fails    bool
	}{
		"nobody": {answers: map[string]string{node: object("")}, settings: all},
		"paused": {answers: map[string]string{node: taken}, want: "paused by"},
		"being deleted": {answers: map[string]string{node: object(`,"deletionTimestamp":"2026-01-01T00:00:00Z"`)},
			want: "another actor"},
		"Karpenter": {answers: map[string]string{node: `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n",
"uid":"u"},"spec":{"taints":[{"key":"karpenter.sh/disrupted","effect":"NoSchedule"}]}}`},
			want: "another actor works on this node: taint karpenter"},
		"kured":     {answers: map[string]string{node: object(""), lock: locked}, settings: all, want: "kured has its lock"},
		"not asked": {answers: map[string]string{node: object(""), lock: locked, lease: held}},
		"medik8s": {answers: map[string]string{node: object(""), lease: held}, settings: all,
			want: "self-node-remediation"},
		"no answer": {settings: all, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer, ok := test.answers[r.URL.Path]
				if !ok {
					answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
				}
				w.Header().Set("Content-Type", "application/json")
				if !ok {
					w.WriteHeader(http.StatusNotFound)
				}
				_, _ = io.WriteString(w, answer)
			}))
			defer server.Close()
			file := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(file, fmt.Appendf(nil, `{"kind":"Config","apiVersion":"v1","current-context":"x",
"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{"token":"t"}}],
"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}]}`, server.URL), 0o600); err != nil {
				t.Fatal(err)
			}
			client, err := kube.New(kube.Config{Node: "n", Kubeconfig: file}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			why, err := repairsPaused(client, test.settings)(t.Context())
			if (err != nil) != test.fails || !strings.HasPrefix(why, test.want) || (why == "") != (test.want == "") {
				t.Errorf("%q, %v", why, err)
			}
		})
	}
}
