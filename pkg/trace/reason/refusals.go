package reason

import "github.com/nodeagent/nodeagent/pkg/trace/stage"

const (
	controllers = "kube-controller-manager 1.36.3, "
	admission   = "kube-apiserver 1.36.3, "
)

// admissionTexts match the Event FailedCreate of an owner. Failures of the apiserver come first: their texts may
// contain "forbidden" as well.
func admissionTexts() []Text {
	from := []string{"FailedCreate"}
	const web = `Error creating: pods "web-abc-x1" is forbidden: `
	return []Text{
		{"AdmissionUnavailable", stage.Admit, from, []string{"failed calling webhook", "failed to call webhook"}, []Example{
			{admission + "admission/plugin/webhook", "FailedCreate", `Error creating: Internal error occurred: ` +
				`failed calling webhook "a.example": ` +
				`failed to call webhook: Post "https://a.default.svc:443/?timeout=10s": dial tcp 10.0.0.1:443: connect: connection refused`}}},
		{createFailed, stage.Admit, from, []string{"quota evaluation timed out", "status unknown for quota", "not yet ready to handle request",
			"etcdserver", "too many requests", "cannot create resource", "the server is currently unable", "connection refused",
			"timeout: request did not complete", "internal error occurred", "the object has been modified"}, []Example{
			{admission + "admission/plugin/resourcequota", "FailedCreate", `Error creating: Operation cannot be fulfilled on resourcequotas "q": ` +
				"the object has been modified; please apply your changes to the latest version and try again"},
			{admission + "admission/plugin/resourcequota", "FailedCreate", web + "status unknown for quota: q, resources: pods"},
			{admission + "etcd", "FailedCreate", "Error creating: etcdserver: request timed out"},
			{admission + "RBAC", "FailedCreate", `Error creating: pods is forbidden: ` +
				`User "system:serviceaccount:kube-system:replicaset-controller" ` +
				`cannot create resource "pods" in API group "" in the namespace "default"`}}},
		{"QuotaExceeded", stage.Admit, from, []string{"exceeded quota", "failed quota", "insufficient quota"}, []Example{
			{admission + "admission/plugin/resourcequota", "FailedCreate", web + "insufficient quota to match these scopes: " +
				"[{PriorityClass In [system-node-critical system-cluster-critical]}]"},
			{admission + "admission/plugin/resourcequota", "FailedCreate", web +
				"exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3"},
			{controllers + "statefulset", "FailedCreate", `create Pod web-0 in StatefulSet web failed error: ` +
				`pods "web-0" is forbidden: failed quota: q: must specify limits.cpu for: c`}}},
		{"InvalidSpec", stage.Admit, from, []string{" is invalid", "serviceaccount \"", "no priorityclass with name"}, []Example{
			{admission + "serviceaccount", "FailedCreate", web + `error looking up service account default/a: serviceaccount "a" not found`},
			{admission + "priority", "FailedCreate", web + "no PriorityClass with name high was found"},
			{admission + "validation", "FailedCreate", `Error creating: Pod "web-abc-x1" is invalid: spec.containers[0].image: Required value`}}},
		{"AdmissionDenied", stage.Admit, from, []string{"denied the request", "denied request", "violates podsecurity",
			"is forbidden: "}, []Example{
			{admission + "admission/plugin/webhook", "FailedCreate", `Error creating: admission webhook "a.example" denied the request …`},
			{admission + "ValidatingAdmissionPolicy", "FailedCreate", web + "ValidatingAdmissionPolicy 'p' with binding 'b' denied request …"},
			{admission + "PodSecurity", "FailedCreate", web + `violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false`},
			{admission + "LimitRanger", "FailedCreate", web + "maximum cpu usage per Container is 1, but limit is 2"}}},
	}
}
