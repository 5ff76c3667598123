package eventcenter_test

import (
	"net/http"
	"net/http/httptest"

	"github.com/nodeagent/nodeagent/pkg/report/reporttest"
)

// fakeCenter answers HTTP requests with a handler, without a network.
type fakeCenter struct {
	reporttest.Fault
	Handler http.Handler
}

// RoundTrip implements http.RoundTripper.
func (r *fakeCenter) RoundTrip(request *http.Request) (response *http.Response, err error) {
	err = r.Do(request.Context(), func() error {
		recorder := httptest.NewRecorder()
		r.Handler.ServeHTTP(recorder, request)
		response = recorder.Result()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}
