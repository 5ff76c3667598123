package agent

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
