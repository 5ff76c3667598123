package cri

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// runtimeCondition returns the status of one condition and its message.
func runtimeCondition(response *cri.StatusResponse, kind string) (ready bool, message string) {
	for _, c := range response.GetStatus().GetConditions() {
		if c.GetType() == kind {
			return c.GetStatus(), checkkit.Sanitize(fmt.Sprintf("%s: %s", c.GetReason(), c.GetMessage()), 500)
		}
	}
	return false, kind + " is not reported"
}

// isDeadline reports whether err is a timeout, of Go or of gRPC.
func isDeadline(err error) bool {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, e := range joined.Unwrap() {
			if isDeadline(e) {
				return true
			}
		}
	}
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}
