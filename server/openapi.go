package server

import (
	_ "embed"
	"net/http"
)

// openAPI is the OpenAPI 3.1 document of this API. The conformance suite makes
// it of the route table and of what its cases send and get
// (server/conformance/openapi_test.go).
//
//go:embed openapi.json
var openAPI []byte

func (s *Server) serveOpenAPI(x *exchange) {
	x.out = append(x.out[:0], openAPI...)
	_ = x.answer(http.StatusOK)
}
