package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// readinessRule contains the deciding fields of a NodeReadinessRule: readiness.node.x-k8s.io/v1alpha1.
type readinessRule struct {
	Spec struct {
		Conditions []struct {
			Type           corev1.NodeConditionType `json:"type"`
			RequiredStatus corev1.ConditionStatus   `json:"requiredStatus"`
		} `json:"conditions"`
		Taint           corev1.Taint         `json:"taint"`
		EnforcementMode string               `json:"enforcementMode"`
		NodeSelector    metav1.LabelSelector `json:"nodeSelector"`
	} `json:"spec"`
}

// satisfied is the controller's test: each condition has the required status; an absent one counts as Unknown.
func (r readinessRule) satisfied(node *corev1.Node) bool {
	for _, want := range r.Spec.Conditions {
		status := corev1.ConditionUnknown
		for _, c := range node.Status.Conditions {
			if c.Type == want.Type {
				status = c.Status
			}
		}
		if status != want.RequiredStatus {
			return false
		}
	}
	return true
}

// enforce does once, at the apiserver, the controller's work for a change of a Node, and reports whether the node is
// open.
func (r readinessRule) enforce(s *realAPIServer, admin *Client, path string) (open bool, err error) {
	data, err := s.send(admin, "GET", path, "")
	if err != nil {
		return false, err
	}
	var node corev1.Node
	if err := json.Unmarshal(data, &node); err != nil {
		return false, err
	}
	mine := func(t corev1.Taint) bool { return t.Key == r.Spec.Taint.Key && t.Effect == r.Spec.Taint.Effect }
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), mine)
	if open = r.satisfied(&node); !open {
		taints = append(taints, r.Spec.Taint)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"spec": map[string]any{"taints": taints}})
	if err == nil {
		_, err = s.send(admin, "PATCH", path, string(patch))
	}
	return open, err
}

// The NodeReadinessRule of docs/condition-configmap.md opens a node once the agent has found it healthy, and not
// before: not without a condition, not while it is Unknown. A fault closes the node again. The controller's module is
// not available, so this test restates its logic (internal/controller of kubernetes-sigs/node-readiness-controller).
func TestRealAPIServerReadinessRule(t *testing.T) {
	r := newRealAPIServer(t)
	r.populate()
	page, err := os.ReadFile("../../docs/condition-configmap.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```\n")
	var rule readinessRule
	if err := yaml.Unmarshal([]byte(text), &rule); err != nil || len(rule.Spec.Conditions) != 2 || rule.Spec.Taint.Key == "" {
		t.Fatalf("%v: %+v in\n%s", err, rule, text)
	}
	const path = "/api/v1/nodes/node-a"
	admin, agent := r.client("admin"), r.client("agent")
	expect := func(what string, want bool) {
		t.Helper()
		var open bool
		until(t, what, func() (err error) {
			open, err = rule.enforce(r, admin, path)
			if err == nil && open != want {
				err = fmt.Errorf("the node is open: %t, want %t", open, want)
			}
			return err
		}, func(err error) bool { return err == nil })
		data, err := r.send(admin, "GET", path, "")
		if err != nil || strings.Contains(string(data), rule.Spec.Taint.Key) == want {
			t.Errorf("%s: %v, the Node is %s", what, err, data)
		}
	}
	expect("no agent has looked yet", false)
	world := reporttest.NewWorld()
	reporter := condition.New(condition.Config{Node: agent, Store: reporttest.NewStore(), Spread: -1, Grace: 1,
		Conditions: map[string]finding.Condition{"filesystem-readonly": {Type: "ReadonlyFilesystem"},
			"kubelet": {Type: "KubeletUnhealthy"}}})
	observe := func(check string, err error, reasons ...string) {
		state, updates := world.Run(check, err, reasons...)
		reporter.Update(state, updates)
	}
	observe("filesystem-readonly", nil)
	observe("kubelet", errors.New("it does not answer"))
	stop := reporttest.Start(t, reporter)
	defer stop()
	until(t, "the condition that could be told", func() error {
		data, err := r.send(admin, "GET", path, "")
		if err == nil && !strings.Contains(string(data), "ReadonlyFilesystem") {
			err = errors.New(string(data))
		}
		return err
	}, func(err error) bool { return err == nil })
	expect("kubelet cannot be told", false)
	observe("kubelet", nil)
	expect("all is healthy", true)
	observe("filesystem-readonly", nil, "FilesystemReadonly")
	expect("a fault", false)
	observe("filesystem-readonly", nil)
	expect("it is over", true)
}
