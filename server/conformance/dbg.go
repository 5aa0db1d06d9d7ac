package conformance
import ("log/slog";"os")
var debugLogger = slog.New(slog.NewTextHandler(os.Stderr,nil))
