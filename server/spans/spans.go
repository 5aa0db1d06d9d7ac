// Package spans sends the phases of calls to an OpenTelemetry collector, over
// OTLP and HTTP. A call is recorded when it has ended, from the times that were
// taken on its way: what runs in between knows nothing of spans.
//
// A Recorder may be used by any number of goroutines. It sends in the background
// and drops what a collector does not take; Close sends the rest.
package spans

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Call is one request, ended. Nothing of its header but the trace context is
// looked at, and no name or payload of a client goes into a span.
type Call struct {
	Header        http.Header
	Method, Route string // as the route table has them
	RequestID     string
	Status        int
	Start, End    time.Time
	Phases        []Phase
}

// Phase is a part of a call.
type Phase struct {
	Name       string // edge, prepare, plan, commit or render
	Start, End time.Time
}

// Recorder makes spans.
type Recorder struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	context  propagation.TraceContext
}

// New makes a recorder that sends to the collector at endpoint: its base URL, as
// OTEL_EXPORTER_OTLP_ENDPOINT has it. The sampler is that of OTEL_TRACES_SAMPLER;
// by default everything, unless the caller's trace is not sampled.
func New(endpoint, version string) (*Recorder, error) {
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(strings.TrimRight(endpoint, "/")+"/v1/traces"))
	if err != nil {
		return nil, fmt.Errorf("spans to %s: %w", endpoint, err)
	}
	p := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(resource.NewSchemaless(
		attribute.String("service.name", "queen"), attribute.String("service.version", version))))
	return &Recorder{provider: p, tracer: p.Tracer("queen/server")}, nil
}

// Close sends what is left, until ctx ends.
func (r *Recorder) Close(ctx context.Context) error { return r.provider.Shutdown(ctx) }

// Record makes the span of a call and of each of its phases. A trace that the
// call belongs to is taken from its traceparent.
func (r *Recorder) Record(c *Call) {
	ctx := r.context.Extract(context.Background(), propagation.HeaderCarrier(c.Header))
	ctx, span := r.tracer.Start(ctx, c.Method+" "+c.Route, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(c.Start))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("http.request.method", c.Method), attribute.String("http.route", c.Route),
			attribute.Int("http.response.status_code", c.Status), attribute.String("queen.request_id", c.RequestID))
		if c.Status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
		for _, p := range c.Phases {
			_, part := r.tracer.Start(ctx, p.Name, trace.WithTimestamp(p.Start))
			part.End(trace.WithTimestamp(p.End))
		}
	}
	span.End(trace.WithTimestamp(c.End))
}
