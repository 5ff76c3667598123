package configmap_test

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// status is all the code a reader needs: an absent key, or one that is unreadable or older than 2.5 hours is Unknown,
// which opens no gate.
func status(data map[string]string, key string, now time.Time) corev1.ConditionStatus {
	var condition struct {
		Status     corev1.ConditionStatus `json:"status"`
		ObservedAt metav1.Time            `json:"observedAt"`
	}
	err := json.Unmarshal([]byte(data[key]), &condition)
	if err != nil || now.Sub(condition.ObservedAt.Time) > 150*time.Minute {
		return corev1.ConditionUnknown
	}
	return condition.Status
}

// A machine operator returns a node only if the conditions that it names are False.
func Example() {
	data := map[string]string{ // of the ConfigMap node-<name>
		"ReadonlyFilesystem": `{"type":"ReadonlyFilesystem","status":"False","observedAt":"2026-01-01T12:00:00Z"}`,
		"KernelDeadlock":     `{"type":"KernelDeadlock","status":"False","observedAt":"2026-01-01T09:00:00Z"}`,
	}
	now := time.Date(2026, 1, 1, 12, 20, 0, 0, time.UTC)
	for _, key := range []string{"ReadonlyFilesystem", "KernelDeadlock", "NodeUsable"} {
		fmt.Println(key, status(data, key, now), status(data, key, now) == corev1.ConditionFalse)
	}
	// Output:
	// ReadonlyFilesystem False true
	// KernelDeadlock Unknown false
	// NodeUsable Unknown false
}
