package discover

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

func TestNodePods(t *testing.T) {
	away := errors.New("connection refused")
	pods := func(name string, err error) func(context.Context) ([]corev1.Pod, error) {
		return func(context.Context) ([]corev1.Pod, error) {
			if err != nil {
				return nil, err
			}
			return []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: name}}}, nil
		}
	}
	for _, test := range []struct {
		name            string
		kubelet, recent func(context.Context) ([]corev1.Pod, error)
		want            string
		wantErr         error
	}{
		{"kubelet answers", pods("kubelet", nil), pods("apiserver", nil), "kubelet", nil},
		{"kubelet is away: that is no reason to believe somebody else", pods("", away), pods("apiserver", nil), "",
			away},
		{"kubelet refuses", pods("", fs.ErrPermission), pods("apiserver", nil), "apiserver", nil},
		{"both fail", pods("", fs.ErrPermission), pods("", away), "", away},
		{"no apiserver", pods("", fs.ErrPermission), nil, "", fs.ErrPermission},
		{"no kubelet", nil, pods("apiserver", nil), "", hosterr.ErrNotConfigured},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &host.Host{Kubelet: host.Kubelet{Pods: test.kubelet}, Cluster: host.Cluster{RecentPods: test.recent}}
			got, err := NodePods(t.Context(), h)
			if !errors.Is(err, test.wantErr) {
				t.Errorf("error %v, want %v", err, test.wantErr)
			}
			if test.want != "" && (len(got) != 1 || got[0].Name != test.want) {
				t.Errorf("got %v, want %s's", got, test.want)
			}
		})
	}
}
