// Swagger UI sends the document to swagger.io by default (validatorUrl).
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
