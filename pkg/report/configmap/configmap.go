// Package configmap writes the believed state into one ConfigMap of this node, for readers that gate on it, such as
// machine operators. It has the same conditions as the Node, written at the same moments by the same code, but each
// write replaces the whole: a condition that no longer exists has no key.
package configmap

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/report"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
)

// Cluster is the part of the apiserver that the reporter needs. Both calls end when their context does.
type Cluster interface {
	// GetNode reads the Node of this node.
	GetNode(ctx context.Context) (*corev1.Node, error)
	// ApplyConfigMap applies a ConfigMap, given as JSON, server-side: it creates the object, or removes the fields that
	// were applied before and are missing now.
	ApplyConfigMap(ctx context.Context, namespace, name string, object []byte) error
}

// Config configures the ConfigMap.
type Config struct {
	Cluster       Cluster
	Node          string // name of the Node
	Namespace     string
	Version       string // of the agent
	Configuration string // hash of the configuration in force

	// Conditions configures the conditions and when they are written. New sets its Node, Name and Encode.
	Conditions condition.Config
}

const (
	// LabelNode is the label with the name of the Node, if it fits into a label.
	LabelNode = "nodeagent.github.io/node"
	// LabelProducer is the label common to all these ConfigMaps, with the value Producer.
	LabelProducer = "nodeagent.github.io/producer"
	// Producer is the value of LabelProducer.
	Producer = "nodeagent"

	maxLabel = 63
)

// Name returns the name of the ConfigMap of a node.
func Name(node string) string { return "node-" + node }

// Condition is the value of one key, as JSON: a Kubernetes condition, and its producer.
type Condition struct {
	Type               string                 `json:"type"`
	Status             corev1.ConditionStatus `json:"status"`
	Reason             string                 `json:"reason"`
	Message            string                 `json:"message"`
	LastTransitionTime metav1.Time            `json:"lastTransitionTime"`
	ObservedAt         metav1.Time            `json:"observedAt"`    // the agent vouches for it as of then
	Version            string                 `json:"version"`       // of the agent
	Configuration      string                 `json:"configuration"` // hash of the agent's configuration
}

// New returns the reporter.
func New(c Config) *condition.Reporter {
	o := &object{config: c}
	conditions := c.Conditions
	conditions.Name, conditions.Node, conditions.Encode, conditions.Owner = "configmap", o, o.encode, o.owner
	conditions.Refresh = cmp.Or(conditions.Refresh, report.CompareCalm)
	if conditions.Log != nil {
		conditions.Log = conditions.Log.With("reporter", conditions.Name)
	}
	return condition.New(conditions)
}

// object is the ConfigMap, as a condition.Node.
type object struct {
	config Config

	mu  sync.Mutex // guards all below
	uid types.UID  // of the Node; empty: not known
}

// NodeConditions implements condition.Node. The agent has no permission to read ConfigMaps. It remembers transition
// times itself; if it has lost them, it takes those of the Node: the two must not differ.
func (o *object) NodeConditions(ctx context.Context) ([]corev1.NodeCondition, error) {
	node, err := o.config.Cluster.GetNode(ctx)
	if err != nil {
		return nil, err
	}
	o.owner(node.UID)
	return node.Status.Conditions, nil
}

// owner takes the UID of the Node. A ConfigMap of an earlier Node is garbage collected with that Node.
func (o *object) owner(uid types.UID) (another bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	another = o.uid != "" && o.uid != uid
	o.uid = uid
	return another
}

// PatchNodeStatus implements condition.Node with the output of encode.
func (o *object) PatchNodeStatus(ctx context.Context, data []byte) error {
	o.mu.Lock()
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: o.config.Node, UID: o.uid}
	o.mu.Unlock()
	labels := map[string]string{LabelProducer: Producer}
	if len(o.config.Node) <= maxLabel {
		labels[LabelNode] = o.config.Node
	}
	name := Name(o.config.Node)
	manifest, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": json.RawMessage(data),
		"metadata": map[string]any{"name": name, "namespace": o.config.Namespace, "labels": labels,
			"ownerReferences": []metav1.OwnerReference{owner}},
	})
	if err != nil {
		return fmt.Errorf("encode ConfigMap: %w", err)
	}
	return o.config.Cluster.ApplyConfigMap(ctx, o.config.Namespace, name, manifest)
}

// encode returns the data of the ConfigMap, without removed conditions.
func (o *object) encode(conditions []corev1.NodeCondition, _ []string, at metav1.Time) ([]byte, error) {
	data := map[string]string{}
	for _, c := range conditions {
		value, err := json.Marshal(Condition{
			Type: string(c.Type), Status: c.Status, Reason: c.Reason, Message: c.Message,
			LastTransitionTime: c.LastTransitionTime, ObservedAt: at,
			Version: o.config.Version, Configuration: o.config.Configuration,
		})
		if err != nil {
			return nil, fmt.Errorf("encode condition %s: %w", c.Type, err)
		}
		data[key(string(c.Type))] = string(value)
	}
	return json.Marshal(data)
}

// key returns a condition type as the key of a ConfigMap, which has letters, digits, '-', '_' and '.' only.
func key(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '_'
	}, name)
}
