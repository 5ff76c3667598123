package taint

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// fakeTaints is a Node object that takes JSON merge patches of its taints like a real apiserver: the list is replaced as a
// whole, and the patch is refused with a conflict if the Node has changed since it was read.
type fakeTaints struct {
	reporttest.Fault

	Unconfined bool // no admission policy refuses a taint of another key

	mu      sync.Mutex // guards all below
	refused bool       // the identity may write no taint, as kubelet's own
	node    corev1.Node
	version int
	patches int
	rivals  int // how many more writes of another writer come right before ours
}

// Refuse lets the identity write no taint from now on, as kubelet's own.
func (n *fakeTaints) Refuse() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused = true
}

// newFakeTaints returns a node with taints.
func newFakeTaints(taints ...corev1.Taint) *fakeTaints {
	return &fakeTaints{node: corev1.Node{Spec: corev1.NodeSpec{Taints: taints}}}
}

// Change changes the node, like another writer.
func (n *fakeTaints) Change(change func(*corev1.Node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.node)
	n.version++
}

// Rival adds a taint right before each of the next writes, like another writer.
func (n *fakeTaints) Rival(writes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rivals = writes
}

// GetNode implements taint.Node.
func (n *fakeTaints) GetNode(ctx context.Context) (node *corev1.Node, err error) {
	err = n.Do(ctx, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		node = n.node.DeepCopy()
		node.ResourceVersion = fmt.Sprint(n.version)
		return nil
	})
	return node, err
}

// PatchNode implements taint.Node.
func (n *fakeTaints) PatchNode(ctx context.Context, patch []byte, dryRun bool) error {
	return n.Do(ctx, func() error {
		var p struct {
			Metadata struct{ ResourceVersion string }
			Spec     struct{ Taints []corev1.Taint }
		}
		if err := reporttest.Decode(patch, &p); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.refused {
			return fmt.Errorf("not allowed to modify taints: %w", reporttest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, 0))
		}
		others := slices.ContainsFunc(p.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "probe.") })
		if dryRun && (n.Unconfined || !others) {
			return nil
		}
		if dryRun {
			return fmt.Errorf("ValidatingAdmissionPolicy: %w", reporttest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, 0))
		}
		if n.rivals > 0 {
			n.rivals--
			n.version++
			n.node.Spec.Taints = append(n.node.Spec.Taints, corev1.Taint{Key: fmt.Sprint("rival-", n.version)})
		}
		if p.Metadata.ResourceVersion != fmt.Sprint(n.version) {
			return reporttest.Status(http.StatusConflict, metav1.StatusReasonConflict, 0)
		}
		n.node.Spec.Taints, n.version, n.patches = p.Spec.Taints, n.version+1, n.patches+1
		return nil
	})
}

// Shown returns the taints, and how many writes of the agent there were.
func (n *fakeTaints) Shown() (taints []string, patches int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.node.Spec.Taints {
		taints = append(taints, t.ToString())
	}
	return taints, n.patches
}
