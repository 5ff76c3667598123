package condition

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// element is one condition in a strategic merge patch. The apiserver merges the list by type, and leaves other types
// alone. Unlike corev1.NodeCondition it has no omitempty: an omitted field would keep its old value.
type element struct {
	Type               string                 `json:"type"`
	Status             corev1.ConditionStatus `json:"status"`
	LastHeartbeatTime  metav1.Time            `json:"lastHeartbeatTime"`
	LastTransitionTime metav1.Time            `json:"lastTransitionTime"`
	Reason             string                 `json:"reason"`
	Message            string                 `json:"message"`
}

// removal removes one condition from the list; a missing one is no error.
type removal struct {
	Patch string `json:"$patch"` // "delete"
	Type  string `json:"type"`
}

// encode returns the strategic merge patch of nodes/status that writes conditions and deletes removed.
func encode(conditions []corev1.NodeCondition, removed []string, heartbeat metav1.Time) ([]byte, error) {
	elements := make([]any, 0, len(conditions)+len(removed))
	for _, c := range conditions {
		elements = append(elements, element{
			Type: string(c.Type), Status: c.Status, Reason: c.Reason, Message: c.Message,
			LastHeartbeatTime: heartbeat, LastTransitionTime: c.LastTransitionTime,
		})
	}
	for _, name := range removed {
		elements = append(elements, removal{Patch: "delete", Type: name})
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": elements}})
	if err != nil {
		return nil, fmt.Errorf("encode node conditions: %w", err)
	}
	return patch, nil
}
