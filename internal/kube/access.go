package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// lacksCredentials reports unusable credentials: no request can be made with them.
func lacksCredentials(path string, err error) error {
	if err == nil {
		return nil
	}
	grant := "correct " + path
	switch {
	case errors.Is(err, ErrNoCredentials):
		grant = "name a kubeconfig as paths.kubeconfig, or install the agent with its chart, which gives it a ServiceAccount"
	case errors.Is(err, fs.ErrPermission):
		grant = fmt.Sprintf("let the agent's user read %s and the files that it names: it runs as root, with mode 0600 and owner root; "+
			"see whether SELinux or AppArmor denies it", path)
	case errors.Is(err, owned.ErrOthers):
		grant = "make the file that the error names writable by root only: `chown root:root` and `chmod go-w`; a kubeconfig or a key " +
			"has mode 0600"
	}
	if info, statErr := os.Stat(path); statErr == nil && path != "" {
		err = fmt.Errorf("%w (%s has mode %04o)", err, path, info.Mode().Perm())
	}
	return &finding.AccessError{Err: err, Access: finding.Access{
		Lack: "the credentials for the apiserver cannot be used: " + clip(err.Error()), Grant: grant}}
}

// forbidden matches the apiserver's error for a request that RBAC denies:
//
//	daemonsets.apps is forbidden: User "u" cannot list resource "daemonsets" in API group "apps" at the cluster scope
var forbidden = regexp.MustCompile(
	`User "([^"]*)" cannot (\w+) resource "([\w./-]+)" in API group "([\w.-]*)"(?: in the namespace "([\w.-]+)")?`)

// lacksRight names the right that the apiserver denied.
func lacksRight(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	m := forbidden.FindStringSubmatch(err.Error())
	if m == nil {
		return err // an admission policy or the Node authorizer denied it: no rule would permit it
	}
	user, verb, resource, group, namespace := m[1], m[2], m[3], m[4], m[5]
	kind, where := "a ClusterRole", ""
	if namespace != "" {
		kind, where = "a Role", " in namespace "+namespace
	}
	return &finding.AccessError{Err: err, Access: finding.Access{
		Lack:  strings.TrimSuffix(fmt.Sprintf("the apiserver denies: %s %s.%s", verb, resource, group), ".") + where,
		Grant: fmt.Sprintf("bind %s with %s to %s%s", kind, rule(group, resource, verb), clip(user), where)}}
}

func rule(group, resource, verb string) string {
	return fmt.Sprintf(`{apiGroups: [%q], resources: [%q], verbs: [%q]}`, group, resource, verb)
}

// kubeletForbidden matches kubelet's error: "Forbidden (user=u, verb=get, resource=nodes, subresource(s)=[pods
// proxy])", before 1.33 "…, subresource=proxy)".
var kubeletForbidden = regexp.MustCompile(
	`user=([^,]{1,253}), verb=(\w+), resource=(\w+), subresource(?:\(s\))?=\[?(\w+)`)

// lacksKubeletRight names the right that kubelet denied.
func lacksKubeletRight(err error) error {
	var status *StatusError
	if !errors.As(err, &status) {
		return err
	}
	switch status.Code {
	case http.StatusUnauthorized:
		return &finding.AccessError{Err: err, Access: finding.Access{
			Lack: "kubelet does not know the agent",
			Grant: "kubelet must be able to ask the apiserver who the agent is (authentication.webhook.enabled: true, an " +
				"apiserver that it reaches), and the agent's token or certificate must be one of this cluster"}}
	case http.StatusForbidden:
		m := kubeletForbidden.FindStringSubmatch(status.Body)
		if m == nil {
			return err
		}
		right := m[3] + "/" + m[4]
		return &finding.AccessError{Err: err, Access: finding.Access{
			Lack:  fmt.Sprintf("kubelet denies: %s %s", m[2], right),
			Grant: fmt.Sprintf("bind a ClusterRole with %s to %s; %s", rule("", right, m[2]), clip(m[1]), kubeletRight),
		}}
	}
	return err
}
