package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
)

// The bounds of one list of the node's pods.
const (
	pageSize = 500
	maxPages = 40 // 20,000 pods of one node, finished ones included
)

// pods lists the pods of the node. With resourceVersion unset the first page is a consistent read (from etcd, or from a
// watch cache that has proved to be fresh); the following pages are of the same version. If that version has been
// compacted (410), the list is restarted, once. An answer other than a list of this node's pods is an error: the agent
// must never conclude wrongly that this node has none.
func (c *Client) pods(ctx context.Context) ([]corev1.Pod, error) { return c.listPods(ctx, podQuery{}) }

// podsNamed lists the one pod of that name, if it is on this node. The same rules apply: it must never be reported
// missing wrongly.
func (c *Client) podsNamed(ctx context.Context, namespace, name string) ([]corev1.Pod, error) {
	if err := validName(namespace, name); err != nil {
		return nil, err
	}
	return c.listPods(ctx, podQuery{namespace, name})
}

// validName refuses an invalid pod name: the name comes from the runtime, and becomes part of a URL and of a field
// selector.
func validName(namespace, name string) error {
	problems := append(validation.IsDNS1123Label(namespace), validation.IsDNS1123Subdomain(name)...)
	if len(problems) > 0 {
		return fmt.Errorf("apiserver: %q in namespace %q: %s", clip(name), clip(namespace),
			strings.Join(problems, "; "))
	}
	return nil
}

// podQuery is one pod of the node; the zero value means all of them.
type podQuery struct{ namespace, name string }

func (q podQuery) what(node string) string {
	if q == (podQuery{}) {
		return "list pods of node " + node
	}
	return fmt.Sprintf("list pods of node %s named %s/%s", node, q.namespace, q.name)
}

func (c *Client) listPods(ctx context.Context, q podQuery) ([]corev1.Pod, error) {
	pods, err := c.podPages(ctx, q)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		pods, err = c.podPages(ctx, q)
	}
	return pods, err
}

func (c *Client) podPages(ctx context.Context, q podQuery) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	token := ""
	for range maxPages {
		page, err := c.podPage(ctx, q, token)
		if err != nil {
			return nil, err
		}
		pods = append(pods, page.Items...)
		if page.Continue == "" {
			return pods, nil
		}
		if page.Continue == token || len(page.Items) == 0 {
			return nil, errors.New("apiserver: list pods: pages do not advance")
		}
		token = page.Continue
	}
	return nil, fmt.Errorf("apiserver: list pods of node %s: more than %d pages", c.config.Node, maxPages)
}

// checkList refuses an answer without a resourceVersion, which every list has: an object of another kind and "{}"
// decode as an empty list.
func checkList(what string, answer metav1.ListInterface) error {
	if answer.GetResourceVersion() == "" {
		return fmt.Errorf("apiserver: %s: the answer is no list: it has no resourceVersion", what)
	}
	return nil
}

func (c *Client) podPage(ctx context.Context, q podQuery, token string) (*corev1.PodList, error) {
	page := &corev1.PodList{}
	what := q.what(c.config.Node)
	selector := "spec.nodeName=" + c.config.Node
	if q.name != "" {
		selector += ",metadata.name=" + q.name
	}
	err := c.send(ctx, request{
		what:  what,
		group: corev1.SchemeGroupVersion,
		build: func(r *rest.RESTClient) *rest.Request {
			query := r.Get().NamespaceIfScoped(q.namespace, q.namespace != "").Resource("pods").
				Param("fieldSelector", selector).
				Param("limit", fmt.Sprint(pageSize))
			if token != "" {
				query = query.Param("continue", token)
			}
			return query
		},
		into: page,
		wait: true,
	})
	if err != nil {
		return nil, err
	}
	if err := checkList(what, page); err != nil {
		return nil, err
	}
	for i := range page.Items {
		pod := &page.Items[i]
		pod.ManagedFields = nil
		if pod.Spec.NodeName != c.config.Node {
			return nil, fmt.Errorf("apiserver: %s: answered with pod %s/%s of node %q", what, pod.Namespace, pod.Name,
				pod.Spec.NodeName)
		}
		if pod.UID == "" {
			return nil, fmt.Errorf("apiserver: %s: answered with pod %s/%s without a UID", what, pod.Namespace,
				pod.Name)
		}
		if q != (podQuery{}) && q != (podQuery{pod.Namespace, pod.Name}) {
			return nil, fmt.Errorf("apiserver: %s: answered with pod %s/%s", what, pod.Namespace, pod.Name)
		}
	}
	return page, nil
}
