package apiserverreachability

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// evaluateReach returns the fault that the apiserver's answer shows, or nil.
func evaluateReach(endpoint string, status int, err error) *finding.Finding {
	fault := func(reason, format string, args ...any) *finding.Finding {
		return &finding.Finding{
			Subject: finding.Subject{Kind: "apiserver", Name: endpoint}, Severity: finding.Warning,
			Reason: reason, Message: fmt.Sprintf("the apiserver at %s ", endpoint) + fmt.Sprintf(format, args...),
			Facts: map[string]string{"status": strconv.Itoa(status)},
		}
	}
	if err == nil {
		if status < http.StatusInternalServerError {
			return nil
		}
		return fault("APIServerFailing",
			"answers /livez with status %d: it, or the load balancer in front of it, is not healthy", status)
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return fault("APIServerNameUnknown", "cannot be resolved by this node: %s", checkkit.Sanitize(err.Error(), 200))
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fault("APIServerCertificateInvalid",
			"presents a certificate that kubelet's kubeconfig does not trust: %s", checkkit.Sanitize(err.Error(), 300))
	}
	return fault("APIServerUnreachable",
		"cannot be reached from this node: %s; try from another node to find out which side is at fault",
		checkkit.ErrorText(err))
}
