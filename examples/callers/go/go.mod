module example.com/ratebound

go 1.25

require github.com/labstack/echo/v5 v5.1.0
