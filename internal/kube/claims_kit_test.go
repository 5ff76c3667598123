package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

var long = flag.Bool("long", false, "500 agents race for slots instead of 40")

const claimsNamespace = "nodeagent-claims"

// apply creates the objects of a manifest of the package.
func (r *realAPIServer) apply(admin *Client, file string, kinds ...string) {
	r.t.Helper()
	data, err := os.ReadFile("../../packaging/kubernetes/" + file)
	if err != nil {
		r.t.Fatal(err)
	}
	for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var object map[string]any
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			r.t.Fatal(err)
		}
		kind, _ := object["kind"].(string)
		if kind == "" || len(kinds) > 0 && !slices.Contains(kinds, kind) {
			continue
		}
		metadata, _ := object["metadata"].(map[string]any)
		path := map[string]string{"Namespace": "/api/v1", "ServiceAccount": "/api/v1"}[kind]
		if path == "" {
			path = fmt.Sprint("/apis/", object["apiVersion"])
		}
		if namespace, ok := metadata["namespace"]; ok {
			path += fmt.Sprint("/namespaces/", namespace)
		}
		resource := strings.ToLower(kind) + "s"
		if kind == "ValidatingAdmissionPolicy" {
			resource = "validatingadmissionpolicies"
		}
		body, err := json.Marshal(object)
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := r.send(admin, "POST", path+"/"+resource, string(body)); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			r.t.Fatalf("%s %s: %v", kind, metadata["name"], err)
		}
	}
}

// send makes a request of any kind.
func (r *realAPIServer) send(c *Client, method, path, body string) ([]byte, error) {
	r.t.Helper()
	s, err := c.open()
	if err != nil {
		r.t.Fatal(err)
	}
	contentType := "application/json"
	if method == http.MethodPatch {
		contentType = "application/merge-patch+json"
	}
	result := s.groups[corev1.SchemeGroupVersion].Verb(method).AbsPath(path).SetHeader("Content-Type", contentType).
		SetHeader("Accept", "application/json").Body([]byte(body)).Do(within(r.t, time.Minute))
	if err := result.Error(); err != nil {
		return nil, err // the error of Raw lacks the reason
	}
	return result.Raw()
}

// bound makes a Node with labels and returns the client of its agent, whose token is bound to it.
func (r *realAPIServer) bound(admin *Client, node string, labels map[string]string) *Client {
	r.t.Helper()
	object, err := json.Marshal(map[string]any{"kind": "Node", "apiVersion": "v1",
		"metadata": map[string]any{"name": node, "labels": labels}})
	if err != nil {
		r.t.Fatal(err)
	}
	made, err := r.send(admin, "POST", "/api/v1/nodes", string(object))
	if apierrors.IsAlreadyExists(err) {
		made, err = r.send(admin, "GET", "/api/v1/nodes/"+node, "")
	}
	if err != nil {
		r.t.Fatal(err)
	}
	var of corev1.Node
	if err := json.Unmarshal(made, &of); err != nil {
		r.t.Fatal(err)
	}
	answer, err := r.send(admin, "POST", "/api/v1/namespaces/nodeagent/serviceaccounts/nodeagent/token", fmt.Sprintf(
		`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"expirationSeconds":3600,"boundObjectRef":
		  {"kind":"Node","apiVersion":"v1","name":%q,"uid":%q}}}`, node, of.UID))
	if err != nil {
		r.t.Fatal(err)
	}
	var token struct{ Status struct{ Token string } }
	if err := json.Unmarshal(answer, &token); err != nil || token.Status.Token == "" {
		r.t.Fatalf("no token: %v", err)
	}
	return r.client(token.Status.Token, node)
}

// fleet returns the claims of a client's node.
func (r *realAPIServer) fleet(c *Client, settings fleet.Settings, leases fleet.Leases) *fleet.Fleet {
	if leases == nil {
		leases = c
	}
	return r.patient(c, settings, leases, 50*time.Millisecond, 2*time.Second)
}

// patient returns claims with the given poll interval and patience.
func (r *realAPIServer) patient(c *Client, settings fleet.Settings, leases fleet.Leases,
	poll, patience time.Duration) *fleet.Fleet {
	settings.Namespace = claimsNamespace
	return fleet.New(fleet.Config{
		Settings: settings,
		Cluster: fleet.Cluster{Leases: leases, Node: c.GetNode, Nodes: c.Nodes, Paused: c.HasConfigMap,
			Isolated: func(ctx context.Context, node string) (bool, error) {
				return c.Isolated(ctx, node, taint.DefaultKey)
			}},
		Now:  func() time.Duration { return host.Now().SinceBoot },
		Poll: poll, Patience: patience,
	})
}

// budget returns settings without a storm limit.
func budget(slots, isolated int) fleet.Settings {
	return fleet.Settings{Slots: slots, Isolated: isolated, Storm: 10_000}
}

// until repeats a request until its error is as wanted: rights and policies take about a second to come into force.
func until(t *testing.T, what string, ask func() error, want func(error) bool) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = ask(); want(err) {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func byPolicy(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

// claims returns the names of all claims.
func (r *realAPIServer) claims(admin *Client) []string {
	r.t.Helper()
	leases, date, err := admin.ListLeases(within(r.t, time.Minute), claimsNamespace, "")
	if err != nil || time.Since(date).Abs() > time.Minute {
		r.t.Fatalf("ListLeases() at %s: %v", date, err)
	}
	var names []string
	for _, l := range leases {
		names = append(names, l.Name)
	}
	return names
}
