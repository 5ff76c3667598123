package configmap

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/pkg/report"
)

// Deleter deletes a ConfigMap; the call ends when its context does.
type Deleter interface {
	DeleteConfigMap(ctx context.Context, namespace, name string) error
}

// Retire deletes the ConfigMap of a node if the agent of this store has written it, and returns its name: no agent will
// update it any more. The agent must not be running.
func Retire(ctx context.Context, cluster Deleter, node, namespace string, store report.Store) ([]string, error) {
	var stored []string
	written := false
	err := store.ForEach(func(key string, value []byte) error {
		var r struct {
			Written bool `json:"written"`
		}
		written = json.Unmarshal(value, &r) == nil && r.Written || written
		stored = append(stored, key)
		return nil
	})
	if err != nil || !written {
		return nil, err
	}
	name := Name(node)
	err = cluster.DeleteConfigMap(ctx, namespace, name)
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return nil, fmt.Errorf("remove the ConfigMap of the node: %w", err)
	}
	for _, key := range stored {
		if err := store.Delete(key); err != nil {
			return []string{name}, err
		}
	}
	if gone {
		return nil, nil
	}
	return []string{name}, nil
}
